//! What is written for a run that ended, whatever its handler said and whatever the store believes of the job.

use mainspring_core::bounds;
use mainspring_core::failure::{Control, Failure};
use mainspring_core::job::{Ended, Fault, FaultKind, Outcome, Standing, cut, settle};
use mainspring_core::store::Cancellation;

use super::byte_source::{ByteSource, ConstantRng};
use super::times::backoff;

/// Any end of any run.
pub(super) fn outcomes(bytes: &[u8]) {
    let mut draw = ByteSource::new(bytes);
    let standing = Standing { failures: draw.any(), max_attempts: draw.any(), backoff: backoff(&mut draw) };
    let random = ConstantRng(draw.any());
    let ended = ended(&mut draw);
    let counts = matches!(&ended, Ended::Fault(_)) || matches!(&ended, Ended::Err(why) if counts(why));
    match settle(ended, &standing, &random) {
        Outcome::Retry { after, fault } => {
            assert!(counts && standing.failures < standing.max_attempts, "an attempt was left");
            assert!(after <= bounds::DELAY);
            bounded(&fault);
        }
        Outcome::Fail { fault, .. } => bounded(&fault),
        Outcome::Snooze { after } => assert!(!counts && after <= bounds::DELAY),
        Outcome::Cancel { why, .. } => assert!(why.len() <= bounds::WHY_BYTES && !why.contains('\0')),
        Outcome::Succeed { .. } | Outcome::Release | Outcome::Suspend(_) => assert!(!counts),
    }
    texts(&mut draw);
}

fn counts(why: &Failure) -> bool {
    matches!(why.control(), None | Some(Control::RetryIn(_)))
}

fn bounded(fault: &Fault) {
    assert!(fault.message.len() <= bounds::ERROR_BYTES);
    assert!(!fault.message.contains('\0'));
}

fn ended(draw: &mut ByteSource<'_>) -> Ended {
    let kind = draw.one(FaultKind::ALL);
    match draw.any::<u8>() % 11 {
        0 => Ended::Ok(draw.perhaps(ByteSource::any::<Vec<u8>>)),
        1 => Ended::Fault(Fault::new(kind, draw.text())),
        2 => Ended::Expired,
        3 => Ended::Stopped(Cancellation::operator(draw.text())),
        4 => Ended::Released,
        5 => Ended::Err(draw.text().into()),
        6 => Ended::Err(Control::RetryIn(draw.duration()).into()),
        7 => Ended::Err(Control::Snooze(draw.duration()).into()),
        8 => Ended::Err(Control::Discard(draw.text()).into()),
        9 => Ended::Err(Control::Cancel(draw.text()).into()),
        _ => Ended::Err(Control::Throttled(draw.perhaps(ByteSource::duration)).into()),
    }
}

/// A text that is cut keeps its beginning, is within its bound, and is cut no further by a second cut.
fn texts(draw: &mut ByteSource<'_>) {
    let text = draw.text();
    let bound = draw.one(&[bounds::WHY_BYTES, bounds::NOTE_BYTES, bounds::ERROR_BYTES]);
    let kept = cut(text.clone(), bound);
    assert!(kept.len() <= bound && !kept.contains('\0'));
    assert_eq!(cut(kept.clone(), bound), kept);
    if text.len() <= bound && !text.contains('\0') {
        assert_eq!(kept, text);
    }
}
