"""Handlers in Python: one warm process runs one job after the other. Needs nothing but the standard library."""

import json
import sys
import time
import traceback


def answer(job, **said):
    """Says one thing of a job: progress, log, ok, error, throttled or cancel."""
    print(json.dumps({"id": job["id"], **said}), file=protocol, flush=True)


def word_count(job):
    words = job["input"]["text"].split()
    for done, _ in enumerate(words):
        answer(job, progress={"done": done, "total": len(words), "note": "counting"})
    return {"words": len(words)}


def flaky(job):
    if job["attempt"] < 3:
        raise RuntimeError(f"attempt {job['attempt']} fails")
    return f"attempt {job['attempt']} succeeds"


def nap(job):
    time.sleep(job["input"]["seconds"])


HANDLERS = {"word-count": word_count, "flaky": flaky, "nap": nap}

# Standard output belongs to the protocol, so `print` in a library must go elsewhere: to standard error, which is the log.
protocol, sys.stdout = sys.stdout, sys.stderr
print(json.dumps({"ready": 1, "kinds": list(HANDLERS)}), file=protocol, flush=True)

# The end of standard input means that the worker has no more jobs, or is gone.
for line in sys.stdin:
    job = json.loads(line)
    if "cancel" in job:
        continue  # It came after the answer: a job that ran has ended.
    try:
        answer(job, ok=HANDLERS[job["kind"]](job))
    except Exception as error:
        traceback.print_exc()
        answer(job, error=f"{type(error).__name__}: {error}", retry=not isinstance(error, (KeyError, TypeError)))
