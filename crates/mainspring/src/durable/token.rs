//! Tokens: a secret that is good for one signal to one job, and for nothing else.
//!
//! A token is made in the body of a step that sends it somewhere, and is redeemed by whoever comes back with it: a link in
//! a mail, the callback of a payment. Kept is a hash of its secret, with what it is good for, before the body can send it.
//! A body that runs again makes another one; both stand for the same sender, so that only one signal comes of them. When
//! the signal has been read, and when it has expired, nothing is kept of a token.

use std::collections::BTreeMap;
use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use mainspring_core::id::JobId;
use mainspring_core::journal::{EntryKind, Message, MessageBody, Value, Written};
use mainspring_core::name::{Key, SignalName};
use mainspring_core::planted::{self, Defect};
use mainspring_core::seam::Pending;
use mainspring_core::time::Timestamp;
use mainspring_core::{Error, Result, bounds};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::operation::side_entry;
use super::session::Session;
use super::signal::{SendSignal, SignalReceipt, SignalRef};
use super::step::StepContext;
use crate::engine::Engine;

/// How long a token is good, if nobody says.
const LIFE: Duration = Duration::from_hours(24 * 7);
/// What tokens begin with.
const PREFIX: &str = "mst";
/// The keys under which tokens are stored: no operation has a key without a name.
const TOKEN_KEYS: &str = "#token=";

/// The stored part of a token.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct TokenGrant {
    signal: SignalName,
    sender: String,
    expires: i64,
}

/// Tokens that a handler knows of, so that they can be forgotten.
#[derive(Default)]
pub(crate) struct Tokens {
    known: BTreeMap<Key, TokenGrant>,
    /// Those of which the store has kept the value, in a large journal.
    unread: Vec<Key>,
}

impl Tokens {
    pub(crate) fn load(entries: &BTreeMap<Key, Written>) -> Self {
        let kept = entries.values().filter(|entry| entry.key.as_str().starts_with(TOKEN_KEYS));
        let mut tokens = Tokens::default();
        for entry in kept {
            match &entry.value {
                Value::Here(value) => tokens.know(&entry.key, value),
                Value::There(_) => tokens.unread.push(entry.key.clone()),
            }
        }
        tokens
    }

    fn know(&mut self, key: &Key, value: &[u8]) {
        self.known.extend(serde_json::from_slice(value).ok().map(|grant| (key.clone(), grant)));
    }

    /// Those that are of no more use: what they were good for has been read, or their time is over.
    pub(crate) fn used_up(&mut self, read: &[Message], now: Timestamp) -> Vec<Key> {
        if self.known.is_empty() {
            return Vec::new();
        }
        let is_read = |grant: &TokenGrant| {
            read.iter().any(|message| match &message.body {
                MessageBody::Signal { name, sender, .. } => *name == grant.signal && *sender == grant.sender,
                MessageBody::Ended { .. } => false,
            })
        };
        let over = |grant: &TokenGrant| grant.expires <= now.as_micros() || is_read(grant);
        self.known.extract_if(.., |_, grant| over(grant)).map(|(key, _)| key).collect()
    }
}

/// A token for one signal. Its text is a secret; its `Debug` form does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Returns the text to send: letters, digits and `_`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(\u{2026})")
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(digit.into(), 16).unwrap_or('0'));
        }
        text
    })
}

/// The key under which a token with this secret is kept.
fn token_key(secret: &str) -> Result<Key> {
    Key::new(format!("{TOKEN_KEYS}{}", hex(&Sha256::digest(secret.as_bytes()))))
}

/// A token to make. Await it; see [`StepContext::token`].
#[must_use = "nothing is made until this is awaited"]
pub struct MintToken<'a> {
    step: &'a StepContext,
    signal: Result<SignalName>,
    who: Option<String>,
    life: Duration,
}

impl MintToken<'_> {
    /// Sets how long the token works. Default: a week.
    pub fn expires_in(mut self, life: Duration) -> Self {
        self.life = life;
        self
    }

    /// Names the sender, if one step makes several tokens: each stands for a sender of its own, for waits for
    /// [several signals](crate::workflow::Signal::count).
    pub fn sender(mut self, who: impl Into<String>) -> Self {
        self.who = Some(who.into());
        self
    }

    async fn mint(self) -> Result<Token> {
        let session = self.step.session();
        let now = session.now();
        let sender = match self.who {
            None => format!("token {}", self.step.key()),
            Some(who) => format!("token {} {who}", self.step.key()),
        };
        if sender.len() > bounds::KEY_BYTES {
            return Err(Error::TooLarge { what: "sender", size: sender.len(), limit: bounds::KEY_BYTES });
        }
        let expires = now.after(self.life.min(bounds::DELAY)).as_micros();
        let grant = TokenGrant { signal: self.signal?, sender, expires };
        let secret = session.engine.seams().rng.secret();
        let secret =
            hex(&secret.ok_or_else(|| Error::unavailable("the system has no randomness for secrets"))?);
        let key = token_key(&secret)?;
        let value = serde_json::to_vec(&grant)
            .map_err(|error| Error::Convert { what: "token", source: error.into() })?;
        {
            let mut state = session.state();
            let used_up = state.tokens.used_up(&[], now);
            state.remove(used_up);
            state.tokens.known.insert(key.clone(), grant);
        }
        session.record(vec![side_entry(key, EntryKind::Value, value)], Vec::new()).await?;
        let job = hex(self.step.job().as_bytes());
        Ok(Token(format!("{PREFIX}_{job}_{secret}")))
    }
}

impl<'a> IntoFuture for MintToken<'a> {
    type Output = Result<Token>;
    type IntoFuture = Pending<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.mint())
    }
}

/// Finds out what all tokens are good for, before a signal is read: it may be that of one of them.
pub(super) async fn know_all(session: &Session) -> Result<()> {
    let unread = session.state().tokens.unread.clone();
    for keys in unread.chunks(bounds::PAGE) {
        let _busy = session.busy();
        let values = session.engine.store().values(session.run().claim.id, keys.to_vec()).await?;
        let tokens = &mut session.state().tokens;
        for (key, value) in keys.iter().zip(values) {
            if let Some(value) = value {
                tokens.know(key, &value);
            }
        }
    }
    session.state().tokens.unread.clear();
    Ok(())
}

impl StepContext {
    /// Makes a token for one signal to this job, and for nothing else: for a link in a mail, or the address that an
    /// outside service calls. Your web server passes it to [`Engine::redeem`].
    ///
    /// ```
    /// # use mainspring::{Context, Job, SignalType};
    /// # #[derive(serde::Serialize, serde::Deserialize, Job)] struct Order { id: u64 }
    /// # async fn mail(_link: &str) -> mainspring::HandlerResult<()> { Ok(()) }
    /// const APPROVED: SignalType<bool> = SignalType::new("approved");
    ///
    /// async fn order(ctx: Context, _job: Order) -> mainspring::HandlerResult<()> {
    ///     ctx.step_with("ask", async |step| {
    ///         let token = step.token(APPROVED).await?;
    ///         mail(&format!("https://example.com/approve?token={token}")).await
    ///     })
    ///     .await?;
    ///     let approved = ctx.signal(APPROVED).await?;
    ///     # let _ = approved;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the system has no randomness; otherwise as the record of a step.
    #[expect(clippy::needless_pass_by_value, reason = "a constant or text: `&APPROVED` would be noise")]
    pub fn token<T>(&self, signal: impl SignalRef<T>) -> MintToken<'_> {
        MintToken { step: self, signal: SignalName::new(signal.name()), who: None, life: LIFE }
    }
}

impl Engine {
    /// Sends the signal of a [token](StepContext::token). That works once.
    ///
    /// # Errors
    /// [`Error::Token`] if the token was used, has expired, or was never made; otherwise as [`Engine::signal`]. After
    /// [`Error::OutcomeUnknown`] the signal may be stored. If a second call then returns [`Error::Token`], the first
    /// one succeeded, or somebody else used the token.
    pub async fn redeem<T: Serialize>(&self, token: &str, value: &T) -> Result<()> {
        let (job, secret) = parse(token).ok_or(Error::Token)?;
        let found = self.store().values(job, vec![token_key(secret)?]).await?;
        let grant: Option<TokenGrant> =
            found.into_iter().next().flatten().and_then(|value| serde_json::from_slice(&value).ok());
        let grant =
            grant.filter(|grant| self.seams().clock.now().as_micros() < grant.expires).ok_or(Error::Token)?;
        let send: SendSignal<'_> = self.send(job, Ok(grant.signal), value);
        let sender = if planted::is(Defect::TokenReplayed) {
            format!("{} {}", grant.sender, self.seams().rng.next_u64())
        } else {
            grant.sender
        };
        match send.sender(sender).send().await {
            Ok((SignalReceipt::Stored, _)) => Ok(()),
            // By this call, or by another one at the same time.
            Ok((SignalReceipt::Repeated, true)) => Err(Error::OutcomeUnknown { source: None }),
            Ok((SignalReceipt::Repeated, false)) | Err(Error::NotFound(_)) => Err(Error::Token),
            Err(error) => Err(error),
        }
    }
}

/// The job and the secret of a token.
fn parse(token: &str) -> Option<(JobId, &str)> {
    let mut parts = token.split('_');
    let (prefix, job, secret) = (parts.next()?, parts.next()?, parts.next()?);
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let formed = prefix == PREFIX && job.len() == 32 && secret.len() == 64 && digits(job) && digits(secret);
    if !formed || parts.next().is_some() {
        return None;
    }
    let id = [&job[..8], &job[8..12], &job[12..16], &job[16..20], &job[20..]].join("-");
    Some((id.parse().ok()?, secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_written_and_nothing_else_is() {
        let id: JobId = "01a1de98-55b8-78d4-8fb5-ccc5f0d5c11c".parse().expect("an id");
        let secret = "0".repeat(64);
        let text = format!("mst_{}_{secret}", hex(id.as_bytes()));
        assert_eq!(parse(&text), Some((id, secret.as_str())));
        assert!(!format!("{:?}", Token(text.clone())).contains(&secret));
        for bad in [
            "",
            "mst",
            "mst__",
            "mst_\u{fc}_x",
            &text[1..],
            &text[..text.len() - 1],
            &format!("{text}_"),
            &text.replace('0', "g"),
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
