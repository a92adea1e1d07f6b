//! The servers' versions with which all tests were run. docs/install.md has the table.

use super::Finding;

pub(super) struct TestedVersions {
    pub(super) server: &'static str,
    /// Major and minor number.
    pub(super) oldest: (u32, u32),
    pub(super) newest: (u32, u32),
    /// The version before which something fails, and what.
    pub(super) needed: ((u32, u32), &'static str),
}

impl TestedVersions {
    pub(super) fn judge(&self, version: &str) -> Finding {
        let Self { server, oldest, newest, needed } = self;
        let found = format!("{server} {version}");
        let Some(number) = major_and_minor(version) else {
            return Finding::could_not_look(format!("{found} is no version"), "look at the server's version by hand");
        };
        let name =
            |(major, minor): (u32, u32)| if minor == u32::MAX { major.to_string() } else { format!("{major}.{minor}") };
        let (needed, why) = needed;
        match () {
            () if number < *needed => Finding::fail(found, format!("use {server} {} or later: {why}", name(*oldest))),
            () if number < *oldest => Finding::warn(found, format!("use {server} {} or later", name(*oldest))),
            () if number > *newest => {
                let fix =
                    format!("our tests were run up to {server} {}: try this version before a sale", name(*newest));
                Finding::warn(found, fix)
            }
            () => Finding::pass(found),
        }
    }
}

/// Of a version such as `4.3.6`, `18.1 (Debian 18.1-1)` or `17beta2`.
fn major_and_minor(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    let major = numbers.next()?.parse().ok()?;
    Some((major, numbers.next().and_then(|minor| minor.parse().ok()).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict::{self, Fail, Pass, Unknown, Warn};
    use crate::doctor::{postgres_checks, rabbitmq_checks, redis_checks};

    #[test]
    fn versions_that_nobody_tested_are_named() {
        let cases: [(&TestedVersions, &[(&str, Verdict)]); 3] = [
            (
                &postgres_checks::VERSIONS,
                &[("12.9", Fail), ("14.1", Warn), ("15.4", Pass), ("18.2 (Debian 18.2-1)", Pass), ("19beta1", Warn)],
            ),
            (
                &redis_checks::VERSIONS,
                &[
                    ("4.0.14", Fail),
                    ("6.2.14", Warn),
                    ("7.0.15", Pass),
                    ("8.0.6", Pass),
                    ("8.9.1", Warn),
                    ("unstable", Unknown),
                ],
            ),
            (
                &rabbitmq_checks::VERSIONS,
                &[
                    ("3.9.5", Fail),
                    ("3.10.8", Pass),
                    ("3.13.7", Pass),
                    ("4.3.6", Pass),
                    ("4.4.0", Warn),
                    ("5.0.0-rc.1", Warn),
                ],
            ),
        ];
        for (tested, versions) in cases {
            for (version, verdict) in versions {
                assert_eq!(tested.judge(version).verdict, *verdict, "{} {version}", tested.server);
            }
        }
    }
}
