//! The guards that protect the endpoint, in a form in which those of an old and a new web config file can be compared.
//!
//! A file that is being written may be empty or cut at any point for a moment, and must not weaken the endpoint in that
//! time. A reload therefore keeps every guard, except that the rest of a cut file replaces what was read of it. A
//! restart keeps none.

use std::fmt;

/// The directives of Strict-Transport-Security beside max-age that browsers know (RFC 6797 6.1.2, hstspreload.org).
const HSTS_DIRECTIVES: [&str; 2] = ["includeSubDomains", "preload"];

/// A key of the web config file that protects the endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Guard {
    /// The key; the value follows in parentheses if a different value is a different guard.
    key: String,
    strength: Strength,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Strength {
    /// It protects if it is present.
    Present,
    /// It protects more the higher it is.
    AtLeast(u64),
    /// It protects by the names that it does not list.
    Within(Vec<String>),
}

impl Guard {
    /// A key that protects if it is present.
    pub(super) fn present(key: String) -> Self {
        Self { key, strength: Strength::Present }
    }

    /// A key that admits these names and no other.
    pub(super) fn within(key: String, names: &[String]) -> Self {
        Self { key, strength: Strength::Within(names.to_vec()) }
    }

    /// The guards of a response header. How strict a policy is cannot be told from its text, so any other value is
    /// refused. A promise of HTTPS may become longer.
    pub(super) fn of_header(name: &str, value: &str) -> Vec<Self> {
        let key = format!("http_server_config.headers.{name}");
        if name != "Strict-Transport-Security" {
            return vec![Self::present(format!("{key} ({value})"))];
        }
        let directives = || value.split(';').map(str::trim);
        let seconds = directives().find_map(|directive| {
            let (name, seconds) = directive.split_once('=')?;
            name.trim().eq_ignore_ascii_case("max-age").then(|| seconds.trim().trim_matches('"').parse().ok())?
        });
        // Browsers ignore the header if its max-age is missing or not a number.
        let max_age = Self { key: format!("{key} (max-age)"), strength: Strength::AtLeast(seconds.unwrap_or(0)) };
        let known = HSTS_DIRECTIVES.into_iter().filter(|known| directives().any(|it| it.eq_ignore_ascii_case(known)));
        [max_age].into_iter().chain(known.map(|known| Self::present(format!("{key} ({known})")))).collect()
    }

    /// Whether this one protects as well as `old`.
    fn keeps(&self, old: &Self) -> bool {
        self.key == old.key
            && match (&old.strength, &self.strength) {
                (Strength::AtLeast(old), Strength::AtLeast(new)) => new >= old,
                (Strength::Within(old), Strength::Within(new)) => new.iter().all(|name| old.contains(name)),
                (old, new) => old == new,
            }
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)
    }
}

/// The guards after a reload that replaces the `old` ones with `new` ones. A name that a list has lost may come back,
/// because the list may have been cut.
///
/// # Errors
/// A guard is missing or weaker: the key and the remedy.
pub(super) fn keep(old: &[Guard], mut new: Vec<Guard>) -> Result<Vec<Guard>, String> {
    for guard in old {
        let Some(kept) = new.iter_mut().find(|new| new.keeps(guard)) else {
            return Err(format!("{guard}: missing or weaker in the file: restart tcpmon to take it anyway"));
        };
        if matches!(guard.strength, Strength::Within(_)) {
            *kept = guard.clone();
        }
    }
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a reload may change the value of a header from `old` to `new`, and back.
    #[track_caller]
    fn may_become(name: &str, old: &str, new: &str) -> (bool, bool) {
        let [old, new] = [old, new].map(|value| Guard::of_header(name, value));
        (keep(&old, new.clone()).is_ok(), keep(&new, old).is_ok())
    }

    #[test]
    fn hsts_may_become_longer_and_wider_and_not_the_reverse() {
        let year = "max-age=31536000";
        for (old, new) in [
            ("max-age=3", year),
            ("max-age=9", "max-age=10"),
            (year, "max-age=31536000; includeSubDomains"),
            ("max-age=1;includeSubDomains", "preload; INCLUDESUBDOMAINS; Max-Age=\"2\""),
            ("includeSubDomains", "max-age=1; includeSubDomains"),
            ("max-age=", "max-age=1"),
        ] {
            assert_eq!(may_become("Strict-Transport-Security", old, new), (true, false), "{old} -> {new}");
        }
        let other = "includeSubDomains ; max-age = \"031536000\" ; unknown";
        let same = may_become("Strict-Transport-Security", "max-age=31536000; includeSubDomains", other);
        assert_eq!(same, (true, true));
    }

    #[test]
    fn another_value_of_another_header_is_refused_by_the_name_of_its_key() {
        for (name, one, other) in [
            ("X-Frame-Options", "deny", "sameorigin"),
            ("X-XSS-Protection", "1; mode=block", "1"),
            ("Content-Security-Policy", "default-src 'none'; sandbox", "default-src 'none'"),
        ] {
            assert_eq!(may_become(name, one, other), (false, false), "{name}");
            let problem = keep(&Guard::of_header(name, one), Guard::of_header(name, other)).expect_err("it differs");
            assert!(problem.starts_with(&format!("http_server_config.headers.{name} ({one}): ")), "{problem}");
        }
    }

    #[test]
    fn a_list_may_lose_names_and_get_back_only_those() {
        let list = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            vec![Guard::within("tls_server_config.client_allowed_sans".into(), &names)]
        };
        let all = list(&["a", "b"]);
        let cut = keep(&all, list(&["a"])).expect("fewer names");
        assert_eq!(keep(&cut, list(&["b", "a"])), Ok(all));
        let problem = keep(&cut, list(&["a", "c"])).expect_err("another name");
        assert!(problem.starts_with("tls_server_config.client_allowed_sans: "), "{problem}");
        assert!(keep(&cut, Vec::new()).is_err());
    }
}
