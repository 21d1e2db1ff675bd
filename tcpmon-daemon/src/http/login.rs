//! Basic authentication: user names, bcrypt hashes, and how the cost of password checks is limited.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bcrypt::HashParts;
use hyper::header::HeaderValue;
use ring::{hmac, rand::SystemRandom};
use tokio::sync::Semaphore;
use tracing::warn;

use super::{connections::Client, serve::Login};
use crate::threads;

/// Highest bcrypt cost: 2^14 rounds take about a second, and a first scrape must be answered within ten seconds.
const MAX_BCRYPT_COST: u32 = 14;

/// Maximum number of password checks of one client that may wait; further requests are told to retry later.
const MAX_QUEUED_CHECKS: usize = 64;

/// Names and bcrypt hashes of the users who may send requests.
#[derive(Default)]
pub(super) struct Users {
    hashes: BTreeMap<String, String>,
    /// Checked for an unknown name, at the highest cost of all the hashes, so that response times do not reveal which
    /// names exist.
    dummy_hash: String,
}

/// Hashes must not appear in logs.
impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.hashes.keys()).finish()
    }
}

impl Users {
    /// Takes names and hashes; an error names the first one that cannot be used.
    pub(super) fn new(hashes: BTreeMap<String, String>) -> Result<Self, String> {
        let mut max_cost = 4;
        for (name, hash) in &hashes {
            let bad = |problem: &str| Err(format!("basic_auth_users.{name}: {problem}"));
            match HashParts::from_str(hash).map(|parts| parts.get_cost()) {
                Ok(cost @ 4..=MAX_BCRYPT_COST) => max_cost = max_cost.max(cost),
                Ok(cost) => {
                    bad(&format!(
                        "the bcrypt cost {cost} is not from 4 to {MAX_BCRYPT_COST}: create a hash of cost 10"
                    ))?;
                }
                Err(_) => bad("not a bcrypt hash: create one with `htpasswd -nBC 10 NAME`")?,
            }
        }
        // The password behind it does not matter: the dummy hash grants access to nobody.
        Ok(Self { hashes, dummy_hash: format!("$2b${max_cost:02}${}", "a".repeat(21) + "e" + &"a".repeat(30) + "e") })
    }

    /// Whether everybody may send requests.
    pub(super) fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }
}

/// Checks passwords, one at a time, because bcrypt deliberately takes 50 ms of CPU or more.
///
/// Clients take turns, so a client that guesses passwords delays another by one check at most. A correct password is
/// not computed again: it is remembered as a hash under a key that only this process has.
pub(super) struct Passwords {
    key: hmac::Key,
    /// The last correct password of each name, hashed together with the name and its bcrypt hash.
    verified: Mutex<HashMap<String, hmac::Tag>>,
    queues: Mutex<HashMap<Client, Arc<LoginQueue>>>,
    turn: Arc<Semaphore>,
}

/// Passwords must not appear in logs.
impl fmt::Debug for Passwords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passwords").finish_non_exhaustive()
    }
}

struct LoginQueue {
    slots: Arc<Semaphore>,
    turn: Arc<Semaphore>,
}

impl Passwords {
    /// No password is known yet. Fails if the system cannot supply random bytes.
    pub(super) fn new() -> Result<Self, ring::error::Unspecified> {
        Ok(Self {
            key: hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())?,
            verified: Mutex::default(),
            queues: Mutex::default(),
            turn: Arc::new(Semaphore::new(1)),
        })
    }

    /// Checks the value of the header `Authorization`.
    pub(super) async fn check(self: &Arc<Self>, users: &Users, value: Option<&HeaderValue>, client: Client) -> Login {
        if users.is_empty() {
            return Login::Granted;
        }
        let Some((name, password)) = value.and_then(credentials) else { return Login::Denied };
        let (known, hash) = match users.hashes.get(&name) {
            Some(hash) => (true, hash.clone()),
            None => (false, users.dummy_hash.clone()),
        };
        let message = [name.as_bytes(), hash.as_bytes(), &password].map(|part| [part, b"\0"].concat()).concat();
        if known && self.is_verified(&name, &message) {
            return Login::Granted;
        }
        let queue = self.queue(client);
        let Ok(slot) = Arc::clone(&queue.slots).try_acquire_owned() else { return Login::Busy };
        // These calls do not fail, because the semaphores are never closed.
        let Ok(own) = Arc::clone(&queue.turn).acquire_owned().await else { return Login::Busy };
        let Ok(turn) = Arc::clone(&self.turn).acquire_owned().await else { return Login::Busy };
        // Another request may have had the same password checked meanwhile.
        if known && self.is_verified(&name, &message) {
            return Login::Granted;
        }
        let this = Arc::clone(self);
        let checked = threads::run("password", move || {
            // The turns end when the computation ends, because it continues even if the client disconnects.
            let _turns = (slot, own, turn, queue);
            let verified = bcrypt::verify(&password, &hash).unwrap_or(false) && known;
            if verified {
                let tag = hmac::sign(&this.key, &message);
                this.verified.lock().unwrap_or_else(PoisonError::into_inner).insert(name, tag);
            }
            verified
        });
        match checked.await {
            Ok(true) => Login::Granted,
            Ok(false) => Login::Denied,
            Err(error) => {
                warn!(%error, "cannot check a password");
                Login::Busy
            }
        }
    }

    fn is_verified(&self, name: &str, message: &[u8]) -> bool {
        let verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        verified.get(name).is_some_and(|tag| hmac::verify(&self.key, message, tag.as_ref()).is_ok())
    }

    fn queue(&self, client: Client) -> Arc<LoginQueue> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        // A queue in which nobody waits is referenced only by the map.
        queues.retain(|_, queue| Arc::strong_count(queue) > 1);
        let new = || {
            let slots = Arc::new(Semaphore::new(MAX_QUEUED_CHECKS));
            Arc::new(LoginQueue { slots, turn: Arc::new(Semaphore::new(1)) })
        };
        Arc::clone(queues.entry(client).or_insert_with(new))
    }
}

/// Name and password of a header such as `Basic bmFtZTpwYXNzd29yZA==` (RFC 7617).
fn credentials(value: &HeaderValue) -> Option<(String, Vec<u8>)> {
    let (scheme, encoded) = value.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("Basic") {
        return None;
    }
    let decoded = BASE64_STANDARD.decode(encoded.trim_start()).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    let (name, password) = decoded.split_at(colon);
    Some((String::from_utf8(name.to_vec()).ok()?, password[1..].to_vec()))
}
