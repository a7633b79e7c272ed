"""A child for tests: what it does is its first argument. Each start, and each job that it begins, is a line of a file."""

import json
import os
import subprocess
import sys
import time

what = sys.argv[1]


def note(file, text):
    with open(file, "ab", buffering=0) as out:
        out.write(f"{text}\n".encode())


def say(**said):
    print(json.dumps(said), flush=True)


note("starts", os.getpid())
if what == "noise":
    print("Loading model…", flush=True)
if what == "dies":
    sys.exit("no license")
if what == "mute":
    time.sleep(3600)
if what == "version":
    say(ready=2)
if what == "kinds":
    say(ready=1, kinds=["other"])
if what == "quits":
    # Ready, and gone before it has read anything.
    say(ready=1)
    sys.exit(0)
say(ready=1)
if what == "chats":
    print("still loading", flush=True)

for line in sys.stdin:
    job = json.loads(line)
    if "cancel" in job:
        if what == "cancels":
            say(id=running, cancel="the child agreed")
        continue
    running = job["id"]
    note("begun", f"{job['id']} {job['claim']} {os.getpid()}")
    if what == "wrong-id":
        say(id="8", ok=None)
    elif what == "bad-json":
        print("Traceback, or so", flush=True)
    elif what == "two-things":
        say(id=job["id"], ok=1, error="both")
    elif what == "long":
        print("x" * (3 << 20), flush=True)
    elif what == "large":
        say(id=job["id"], ok="x" * (1 << 20))
    elif what == "ends":
        print("out of luck", file=sys.stderr, flush=True)
        os._exit(3)
    elif what == "once":
        say(id=job["id"], ok=os.getpid())
        sys.exit(0)
    elif what == "closes":
        os.close(1)
        time.sleep(3600)
    elif what == "sleeps":
        print("so tired", file=sys.stderr, flush=True)
        time.sleep(3600)
    elif what == "forks":
        # One in its group, one that leaves it as a daemon does.
        near = subprocess.Popen(["sleep", "3600"])
        far = subprocess.Popen(["sh", "-c", "sleep 3600 & echo $!"], start_new_session=True, stdout=subprocess.PIPE)
        note("family", f"{os.getpid()} {near.pid} {int(far.stdout.readline())}")
        time.sleep(3600)
    elif what == "grows":
        hoard = bytearray(os.urandom(job["input"] << 20))
        if job["input"] > 100:
            time.sleep(3600)
        say(id=job["id"], ok=os.getpid())
    elif what == "stubborn" or what == "cancels":
        say(id=job["id"], progress={"done": 1, "total": 2, "note": "half way"})
        if what == "stubborn":
            time.sleep(3600)
    elif what == "answers":
        said = job["input"]
        say(id=job["id"], log="a line for the log", level="warn")
        say(id=job["id"], progress={"done": 3, "total": 4, "note": "nearly"})
        say(id=job["id"], **said)
    elif what == "works":
        time.sleep(job["input"])
        note("ended", f"{job['id']} {job['claim']}")
        say(id=job["id"], ok=os.getpid())
    else:
        say(id=job["id"], ok={"pid": os.getpid(), "job": job})
