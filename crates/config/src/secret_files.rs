//! Settings from files: `NAME_FILE` names the file that holds the value of the variable `NAME`, as Docker, Kubernetes and systemd hand secrets over.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};

use super::ConfigError;

/// Far more than a secret or a key has.
const BYTES_MAX: u64 = 65_536;
const ADDRESSES: [&str; 3] = ["DATABASE_URL", "REDIS_URL", "AMQP_URL"];

/// The environment, with the content of its files in place of their names. `is_setting` knows the variables of settings.
pub(crate) fn read(
    environment: &HashMap<String, String>,
    is_setting: impl Fn(&str) -> bool,
) -> Result<HashMap<String, String>, ConfigError> {
    let mut read = environment.clone();
    for (variable, path) in environment {
        let Some(name) = variable.strip_suffix("_FILE") else { continue };
        // A setting that is the name of a file itself, such as SECKILL_REDIS__CA_FILE, is read where it is used. No channel has one.
        let is_path = is_setting(variable) && !name.starts_with("SECKILL_CHANNELS__");
        if is_path || !(ADDRESSES.contains(&name) || is_setting(name)) {
            continue;
        }
        if environment.get(name).is_some_and(|value| !value.is_empty()) {
            return Err(ConfigError::GivenTwice { name: name.to_owned() });
        }
        read.remove(variable);
        // An empty name is no file: compose files pass unset variables on as empty ones.
        if !path.is_empty() {
            let value = content(path).map_err(|error| {
                let (variable, path) = (variable.clone(), path.clone());
                ConfigError::NoFile { variable, path, error: error.to_string() }
            })?;
            read.insert(name.to_owned(), value);
        }
    }
    Ok(read)
}

/// The text of a file, without the end of its last line.
fn content(path: &str) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > BYTES_MAX {
        return Err(io::Error::other("it has more than 64 KiB"));
    }
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(text.strip_suffix('\r').unwrap_or(text).to_owned())
}
