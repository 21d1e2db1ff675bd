//! Tests of passwords and the cost of checking them.

use std::{net::SocketAddr, pin::pin, time::Duration};

use tokio::{task::JoinSet, time::timeout};

use super::*;

const DEADLINE: Duration = Duration::from_secs(60);

/// Users with these passwords, hashed at this cost.
fn users(cost: u32, of: &[(&str, &str)]) -> Arc<Users> {
    let hash = |(name, password): &(&str, &str)| ((*name).to_owned(), bcrypt::hash(password, cost).expect("a hash"));
    Arc::new(Users::new(of.iter().map(hash).collect()).expect("good hashes"))
}

fn basic(name: &str, password: &str) -> HeaderValue {
    let encoded = BASE64_STANDARD.encode(format!("{name}:{password}"));
    format!("Basic {encoded}").parse().expect("a header")
}

fn client(address: &str) -> Client {
    SocketAddr::new(address.parse().expect("an address"), 1).into()
}

fn passwords() -> Arc<Passwords> {
    Arc::new(Passwords::new().expect("randomness"))
}

#[tokio::test]
async fn only_the_correct_password_of_a_known_user_is_accepted() {
    let (passwords, users) = (passwords(), users(4, &[("alice", "a:b"), ("bob", "")]));
    let check = async |value: Option<&HeaderValue>| passwords.check(&users, value, client("10.0.0.1")).await;
    for _ in 0..2 {
        assert_eq!(check(Some(&basic("alice", "a:b"))).await, Login::Granted);
        assert_eq!(check(Some(&basic("bob", ""))).await, Login::Granted);
        for (name, password) in [("alice", "a"), ("alice", ""), ("bob", "a:b"), ("eve", "a:b"), ("", "")] {
            assert_eq!(check(Some(&basic(name, password))).await, Login::Denied, "{name}:{password}");
        }
    }
    assert_eq!(check(None).await, Login::Denied);
    for value in ["", "Basic", "Basic ?", "Bearer YWxpY2U6YTpi", "Basic YWxpY2U="] {
        assert_eq!(check(Some(&value.parse().expect("a header"))).await, Login::Denied, "{value}");
    }
    let value = "basic YWxpY2U6YTpi".parse().expect("a header");
    assert_eq!(check(Some(&value)).await, Login::Granted, "the scheme is case-insensitive");
}

#[tokio::test]
async fn without_users_every_request_is_accepted() {
    assert_eq!(passwords().check(&Users::default(), None, client("10.0.0.1")).await, Login::Granted);
}

#[tokio::test]
async fn a_correct_password_is_checked_once_until_its_hash_changes() {
    let (passwords, old) = (passwords(), users(4, &[("alice", "old")]));
    let at = client("10.0.0.1");
    assert_eq!(passwords.check(&old, Some(&basic("alice", "old")), at).await, Login::Granted);
    let turn = Arc::clone(&passwords.turn).acquire_owned().await.expect("open");
    let value = basic("alice", "old");
    let again = timeout(DEADLINE / 10, passwords.check(&old, Some(&value), at)).await;
    assert_eq!(again.expect("nothing is computed"), Login::Granted);
    drop(turn);
    let new = users(4, &[("alice", "new")]);
    assert_eq!(passwords.check(&new, Some(&basic("alice", "old")), at).await, Login::Denied);
    assert_eq!(passwords.check(&new, Some(&basic("alice", "new")), at).await, Login::Granted);
}

#[tokio::test]
async fn an_unknown_user_costs_as_much_as_the_most_expensive_hash() {
    let hash = |cost| bcrypt::hash("right", cost).expect("a hash");
    let users = BTreeMap::from([("alice".to_owned(), hash(4)), ("bob".to_owned(), hash(6))]);
    let users = Arc::new(Users::new(users).expect("they are hashes"));
    // A hash that is not valid would be refused at once.
    assert_eq!(users.dummy_hash.parse::<HashParts>().map(|parts| parts.get_cost()).ok(), Some(6));
    assert_eq!(bcrypt::verify("wrong", &users.dummy_hash).ok(), Some(false));
    // The password of an unknown user is computed, too: it waits for its turn.
    let passwords = passwords();
    let turn = Arc::clone(&passwords.turn).acquire_owned().await.expect("open");
    let unknown = basic("nobody", "wrong");
    let mut check = pin!(passwords.check(&users, Some(&unknown), client("10.0.0.1")));
    timeout(Duration::from_millis(20), &mut check).await.expect_err("it is not its turn");
    drop(turn);
    assert_eq!(check.await, Login::Denied);
}

#[tokio::test]
async fn guessing_delays_other_clients_by_one_check_at_most_and_fills_its_own_queue() {
    let (passwords, users) = (passwords(), users(5, &[("alice", "right")]));
    let mut guesses = JoinSet::new();
    let first = Arc::clone(&passwords.turn).acquire_owned().await.expect("open");
    for guess in 0..MAX_QUEUED_CHECKS + 5 {
        let (passwords, users) = (Arc::clone(&passwords), Arc::clone(&users));
        guesses.spawn(async move {
            passwords.check(&users, Some(&basic("alice", &guess.to_string())), client("10.0.0.1")).await
        });
    }
    for _ in 0..5 {
        assert_eq!(guesses.join_next().await.expect("a guess").expect("no panic"), Login::Busy);
    }
    drop(first);
    let good = basic("alice", "right");
    let good = passwords.check(&users, Some(&good), client("10.0.0.2"));
    assert_eq!(timeout(DEADLINE, good).await.expect("in time"), Login::Granted);
    assert!(guesses.len() > MAX_QUEUED_CHECKS / 2, "only {} guesses wait: the other waited for them", guesses.len());
    let others = timeout(DEADLINE, guesses.join_all()).await.expect("in time");
    assert!(others.iter().all(|login| *login == Login::Denied));
}

#[tokio::test]
async fn one_password_at_a_time_is_checked_even_if_its_client_disconnects() {
    let (passwords, users) = (passwords(), users(8, &[("alice", "right")]));
    let value = basic("alice", "wrong");
    let left = passwords.check(&users, Some(&value), client("10.0.0.1"));
    assert!(timeout(Duration::from_millis(1), left).await.is_err(), "computed in no time");
    assert_eq!(passwords.turn.available_permits(), 0);
    let turn = timeout(DEADLINE, Arc::clone(&passwords.turn).acquire_owned()).await.expect("in time");
    drop(turn.expect("open"));
}

#[test]
fn hashes_and_passwords_are_never_printed() {
    let (passwords, users) = (passwords(), users(4, &[("alice", "right")]));
    assert_eq!(format!("{users:?} {passwords:?}"), "{\"alice\"} Passwords { .. }");
}
