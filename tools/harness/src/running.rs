//! A process that a test starts, and ends in one way or another.

use std::process::{Child, Command, ExitStatus};

/// A process that is killed when the value is dropped.
pub struct Running(pub Child);

impl Running {
    pub fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Sends a signal such as `STOP`. It uses the kill of bash, because not every machine has the program.
    pub fn signal(&self, name: &str) {
        let kill = Command::new("bash").args(["-c", r#"kill -s "$0" "$1""#, name, &self.id().to_string()]).status();
        assert!(kill.unwrap().success(), "kill -{name} {}", self.id());
    }

    /// SIGKILL: nothing is reported or finished.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Ends it in good order.
    pub fn end(mut self) -> ExitStatus {
        self.signal("TERM");
        self.0.wait().unwrap()
    }

    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}
