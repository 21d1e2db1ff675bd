//! The flags that set keys of the config file: one for each key, with its name, help text and rules.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, builder::PossibleValuesParser};

use crate::config::{Collect, Config, ConfigKey, InvalidSetting, Log, Probes, Web};

/// The keys that are set by flags, with their values as written.
#[derive(Clone, Debug, Default)]
pub struct SettingFlags(Vec<(&'static ConfigKey, Vec<String>)>);

impl SettingFlags {
    /// Puts the flags on top of the settings of a file.
    pub(super) fn apply(&self, config: &mut Config) -> Result<(), InvalidSetting> {
        for (key, texts) in &self.0 {
            config.set(key, texts).map_err(|problem| InvalidSetting { key: key.name, problem })?;
        }
        Ok(())
    }
}

impl FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = keys().filter_map(|key| Some((key, matches.get_many(key.name)?.cloned().collect())));
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for SettingFlags {
    fn augment_args(command: Command) -> Command {
        command.args(keys().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// In the order of the help. The flight recorder has no flags: `tcpmon trace` has them.
fn keys() -> impl Iterator<Item = &'static ConfigKey> {
    [Web::KEYS, Config::KEYS, Collect::KEYS, Probes::KEYS, Log::KEYS].into_iter().flatten()
}

fn argument(key: &'static ConfigKey) -> Arg {
    // This flag has the name that other exporters use.
    let name = if key.name == "web.config_file" { "web.config.file".into() } else { key.name.replace('_', "-") };
    let argument = Arg::new(key.name).long(name).value_name(key.value).help(key.help()).hide_possible_values(true);
    let argument = match key.default() {
        toml::Value::Array(_) => argument.action(ArgAction::Append),
        toml::Value::Boolean(_) => argument.num_args(0..=1).require_equals(true).default_missing_value("true"),
        _ => argument,
    };
    match key.choices() {
        Some(choices) => argument.value_parser(PossibleValuesParser::new(choices)),
        None => argument.value_parser(move |text: &str| checked(key, text)),
    }
}

/// The text, if it is valid for this key.
fn checked(key: &ConfigKey, text: &str) -> Result<String, String> {
    let mut config = Config::default();
    config.set(key, &[text.to_owned()])?;
    config.validate().map_err(|invalid| invalid.problem)?;
    Ok(text.to_owned())
}
