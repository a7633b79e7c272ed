//! Names and ids: which texts are one, and that nothing is lost on the way to a text and back.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use mainspring_core::id::{JobId, NodeId};
use mainspring_core::name::{Kind, Label, QueueName, Tag};
use mainspring_core::time::Timestamp;
use mainspring_core::{Error, bounds};
use serde_json::{from_value, json};

use super::byte_source::{ByteSource, ConstantRng};

/// Two texts with a line break between them, as names of every sort.
pub(super) fn names(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (one, other) = text.split_once('\n').unwrap_or((text, ""));
    let plain = |text: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
        (1..=bounds::NAME_BYTES).contains(&text.len()) && text.bytes().all(allowed)
    };
    let free =
        |text: &str| (1..=bounds::TAG_BYTES).contains(&text.len()) && !text.chars().any(char::is_control);
    sort::<QueueName>(one, other, plain);
    sort::<Kind>(one, other, plain);
    sort::<Tag>(one, other, free);
    sort::<Label>(one, other, free);
}

/// Properties of one sort of name.
fn sort<N>(one: &str, other: &str, is_name: impl Fn(&str) -> bool)
where
    N: FromStr<Err = Error> + Display + Debug + AsRef<str> + Ord + Into<String> + TryFrom<String> + Clone,
    N: serde::Serialize + serde::de::DeserializeOwned,
{
    let (first, second) = (one.parse::<N>(), other.parse::<N>());
    assert_eq!(first.is_ok(), is_name(one), "{one:?}");
    assert_eq!(N::try_from(one.to_owned()).is_ok(), first.is_ok());
    assert_eq!(from_value::<N>(json!(one)).is_ok(), first.is_ok(), "a stored name is checked as well");
    let name = match first {
        Ok(name) => name,
        Err(error) => {
            assert!(matches!(error, Error::Invalid { .. } | Error::TooLarge { .. }), "{error:?}");
            assert!(!error.to_string().chars().any(char::is_control), "an error can be shown: {error}");
            return;
        }
    };
    assert_eq!((name.as_ref(), name.to_string().as_str()), (one, one));
    assert_eq!(Into::<String>::into(name.clone()), one);
    assert_eq!(from_value::<N>(json!(name)).ok().as_ref(), Some(&name));
    if let Ok(second) = second {
        assert_eq!(name.cmp(&second), one.cmp(other), "names sort as their texts do");
        assert_eq!(name == second, one == other);
    }
}

/// A text as an id, and ids from their parts.
pub(super) fn ids(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let (job, node) = (text.parse::<JobId>(), text.parse::<NodeId>());
        assert_eq!(job.is_ok(), node.is_ok());
        match job {
            Ok(id) => whole(id),
            Err(error) => assert_eq!(error.to_string(), "invalid job id: not a UUID"),
        }
    }
    let mut draw = ByteSource::new(bytes);
    let (one, other) = (JobId::from_bytes(draw.any()), JobId::from_bytes(draw.any()));
    whole(one);
    whole(other);
    assert_eq!(one.cmp(&other), one.as_bytes().cmp(other.as_bytes()));
    assert_eq!(one.cmp(&other), one.to_string().cmp(&other.to_string()), "ids sort as their texts do");
    minted(&mut draw);
}

fn whole(id: JobId) {
    let text = id.to_string();
    assert_eq!(text.len(), 36);
    assert_eq!(text.parse::<JobId>().ok(), Some(id));
    assert_eq!(text.to_uppercase().parse::<JobId>().ok(), Some(id), "the case of a digit says nothing");
    assert_eq!(JobId::from_bytes(*id.as_bytes()), id);
    assert_eq!(from_value::<JobId>(json!(id)).ok(), Some(id));
}

/// Ids are minted at any time, also one before 1970 and one beyond the 48 bits of milliseconds that an id holds.
fn minted(draw: &mut ByteSource<'_>) {
    let (earlier, random) = (draw.any::<i64>(), ConstantRng(draw.any()));
    let id = JobId::mint(Timestamp::from_micros(earlier), &random);
    let bytes = id.as_bytes();
    assert_eq!((bytes[6] >> 4, bytes[8] >> 6), (7, 0b10), "version 7, variant of the RFC");
    whole(id);
    let later = earlier.saturating_add(draw.any::<u32>().into());
    let last = (1_i64 << 48) * 1_000 - 1;
    if (0..=last).contains(&earlier) && (earlier..=last).contains(&later) {
        let next = JobId::mint(Timestamp::from_micros(later), &random);
        assert_eq!(id.cmp(&next), earlier.cmp(&later), "minted ids sort by microsecond");
    }
}
