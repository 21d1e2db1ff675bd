//! The keys of the config file. Each is declared once, with its type, default and help text: the file, the flags, their
//! help, the manual page and `--print-config` follow from that.

use super::{Collect, Config, Flight, Log, Probes, Web};

/// A key of the config file. The flag with the same name sets the same.
#[derive(Debug)]
pub(crate) struct ConfigKey {
    /// With dots.
    pub(crate) name: &'static str,
    /// What stands for its value in the help: a word such as `N`, or all values with `|` between them.
    pub(crate) value: &'static str,
    pub(super) help: &'static str,
}

/// All keys in the order in which the file is printed: those below a table come last.
pub(super) fn keys() -> impl Iterator<Item = &'static ConfigKey> {
    [Config::KEYS, Collect::KEYS, Probes::KEYS, Flight::KEYS, Web::KEYS, Log::KEYS].into_iter().flatten()
}

/// Declares a table of the config file: its keys with what their names begin with, then the tables below it.
macro_rules! table {
    (
        $(#[$attribute:meta])*
        $table:ident, $prefix:literal;
        $($key:ident: $type:ty = $default:expr, $value:literal, $help:literal;)*
        $([$inner:ident]: $inner_table:ty;)*
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $table {
            $(#[doc = $help] pub $key: $type,)*
            $(#[doc = concat!("Keys below `", stringify!($inner), "`.")] pub $inner: $inner_table,)*
        }

        impl Default for $table {
            fn default() -> Self {
                Self { $($key: $default,)* $($inner: Default::default(),)* }
            }
        }

        impl $table {
            /// The keys of this table.
            pub(crate) const KEYS: &'static [$crate::config::ConfigKey] = &[$(
                $crate::config::ConfigKey { name: concat!($prefix, stringify!($key)), value: $value, help: $help },
            )*];
        }
    };
}
pub(super) use table;

impl ConfigKey {
    /// Its values, if there are only some.
    pub(crate) fn choices(&self) -> Option<impl Iterator<Item = &'static str>> {
        self.value.contains('|').then(|| self.value.split('|'))
    }

    /// What it is for, and its default.
    pub(crate) fn help(&self) -> String {
        format!("{} [default: {}]", self.help, unquoted(&self.default()))
    }

    pub(crate) fn default(&self) -> toml::Value {
        Config::default().value(self)
    }
}

impl Config {
    /// The value of a key.
    pub(super) fn value(&self, key: &ConfigKey) -> toml::Value {
        let mut whole = toml::Value::try_from(self).expect("settings are TOML");
        at(&mut whole, key).clone()
    }

    /// Sets a key to what its flag says; only a list has several texts. The error says what would be right.
    pub(crate) fn set(&mut self, key: &ConfigKey, texts: &[String]) -> Result<(), String> {
        let mut whole = toml::Value::try_from(&*self).expect("settings are TOML");
        let value = at(&mut whole, key);
        let text = texts.last().map_or("", String::as_str);
        *value = match value {
            toml::Value::Array(_) => texts.to_vec().into(),
            toml::Value::Integer(_) => match text.parse::<i64>() {
                Ok(number) => number.into(),
                Err(error) => return Err(format!("{text:?} is not a number ({error})")),
            },
            toml::Value::Boolean(_) => match text.parse::<bool>() {
                Ok(is_on) => is_on.into(),
                Err(_) => return Err(format!("{text:?} is neither true nor false")),
            },
            _ => text.into(),
        };
        *self = whole.try_into().map_err(|error: toml::de::Error| error.message().to_owned())?;
        Ok(())
    }
}

fn at<'a>(whole: &'a mut toml::Value, key: &ConfigKey) -> &'a mut toml::Value {
    let value = key.name.split('.').try_fold(whole, |value, part| value.get_mut(part));
    value.expect("a key is a field of its table")
}

/// The value as it is written for a flag.
fn unquoted(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) if text.is_empty() => "none".to_owned(),
        toml::Value::String(text) => text.clone(),
        toml::Value::Array(values) if values.is_empty() => "none".to_owned(),
        toml::Value::Array(values) => values.iter().map(unquoted).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}
