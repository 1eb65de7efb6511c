//! `--name value` options.

use std::{fmt, str::FromStr};

/// The command line is wrong; ends the command with status 2.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The options of one command; each is taken once, and what is left over at the end is an error.
pub(crate) struct Options(Vec<String>);

impl Options {
    pub(crate) fn new(words: Vec<String>) -> Self {
        Self(words)
    }

    /// Takes `--name`, which has no value.
    pub(crate) fn switch(&mut self, name: &str) -> bool {
        let at = self.0.iter().position(|word| word == name);
        at.map(|at| self.0.remove(at)).is_some()
    }

    /// Takes `--name VALUE`, if it is there.
    pub(crate) fn value<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, Usage> {
        let Some(at) = self.0.iter().position(|word| word == name) else { return Ok(None) };
        self.0.remove(at);
        if at == self.0.len() {
            return Err(Usage(format!("{name} needs a value")));
        }
        let word = self.0.remove(at);
        word.parse().map(Some).map_err(|_| Usage(format!("{name}: {word:?} is not a valid value")))
    }

    /// Takes `--name VALUE`; its absence is an error.
    pub(crate) fn required<T: FromStr>(&mut self, name: &str) -> Result<T, Usage> {
        self.value(name)?.ok_or_else(|| Usage(format!("{name} is missing")))
    }

    /// Refuses whatever no call has taken.
    pub(crate) fn finish(self) -> Result<(), Usage> {
        match self.0.first() {
            None => Ok(()),
            Some(word) => Err(Usage(format!("unknown option {word:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> Options {
        Options::new(line.split_whitespace().map(str::to_owned).collect())
    }

    #[test]
    fn takes_values_and_switches() {
        let mut o = options("--json --port 80");
        assert!(o.switch("--json"));
        assert!(!o.switch("--json"));
        assert_eq!(o.value::<u16>("--port").unwrap(), Some(80));
        assert_eq!(o.value::<u16>("--port").unwrap(), None);
        assert!(o.finish().is_ok());
    }

    #[test]
    fn refuses_what_it_does_not_understand() {
        assert!(options("--port").value::<u16>("--port").is_err());
        assert!(options("--port x").value::<u16>("--port").is_err());
        assert!(options("").required::<u16>("--port").is_err());
        assert!(options("--prot 80").finish().is_err());
    }
}
