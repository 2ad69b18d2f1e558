//! The part of the run that a client has already, as its request says it. Pure.

/// The part of a curve that a client has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct CurvePosition {
    /// Edits of the curve.
    pub(super) edits: u64,
    pub(super) points: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Positions {
    /// Version of the last answer; 0: the client wants an answer at once.
    pub(super) version: u64,
    /// Number of the run that the rest is about.
    pub(super) run: u64,
    pub(super) loss: CurvePosition,
    pub(super) epoch_loss: CurvePosition,
    pub(super) validation: CurvePosition,
    pub(super) learning_rate: CurvePosition,
    pub(super) samples_per_s: CurvePosition,
    /// Number of sentences that it has.
    pub(super) events: u64,
    pub(super) marks: u64,
    /// Rank of the worker whose log is shown; `None`: the one that failed, else the first.
    pub(super) rank: Option<u32>,
    /// Standard output instead of standard error; `None`: the one that has content.
    pub(super) is_stdout: Option<bool>,
    /// Length and time of the log that is shown, as the last answer gave them.
    pub(super) log: String,
}

/// Maximum length of a log's stamp.
const STAMP_MAX: usize = 80;

impl Positions {
    /// Reads the query of a request; `None`: it is not one that the page makes.
    pub(super) fn parse(query: &str) -> Option<Self> {
        let mut all = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=')?;
            match name {
                "version" => all.version = value.parse().ok()?,
                "run" => all.run = value.parse().ok()?,
                "loss" => all.loss = curve(value)?,
                "epoch_loss" => all.epoch_loss = curve(value)?,
                "validation" => all.validation = curve(value)?,
                "learning_rate" => all.learning_rate = curve(value)?,
                "samples_per_s" => all.samples_per_s = curve(value)?,
                "events" => all.events = value.parse().ok()?,
                "marks" => all.marks = value.parse().ok()?,
                "rank" if value.is_empty() => all.rank = None,
                "rank" => all.rank = Some(value.parse().ok()?),
                "stream" => {
                    all.is_stdout = match value {
                        "" => None,
                        "stderr" => Some(false),
                        "stdout" => Some(true),
                        _ => return None,
                    }
                }
                "log" if value.len() <= STAMP_MAX => all.log = value.to_owned(),
                _ => return None,
            }
        }
        Some(all)
    }

    /// Forgets what is about another run than that of this number.
    pub(super) fn of_run(self, run: u64) -> Self {
        if self.run == run { self } else { Self { version: self.version, run, ..Self::default() } }
    }
}

/// Reads edits and points, such as "3.120".
fn curve(text: &str) -> Option<CurvePosition> {
    let (edits, points) = text.split_once('.')?;
    Some(CurvePosition { edits: edits.parse().ok()?, points: points.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_query_says_what_the_client_has() {
        assert_eq!(Positions::parse("").unwrap(), Positions::default());
        let text = "version=7&run=2&loss=3.120&validation=0.4&events=12&marks=1&rank=3&stream=stdout&log=12-34";
        let all = Positions::parse(text).unwrap();
        assert_eq!((all.version, all.run, all.events, all.marks), (7, 2, 12, 1));
        assert_eq!(all.loss, CurvePosition { edits: 3, points: 120 });
        assert_eq!((all.rank, all.is_stdout, all.log.as_str()), (Some(3), Some(true), "12-34"));
        assert_eq!(all.clone().of_run(2), all);
        assert_eq!(all.of_run(3), Positions { version: 7, run: 3, ..Positions::default() });
        assert_eq!(Positions::parse("rank=&stream=").unwrap(), Positions::default());
        for wrong in ["version", "version=-1", "loss=3", "loss=3.x", "stream=both", "x=1", "rank=all", "%00=1"] {
            assert_eq!(Positions::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Positions::parse(&format!("log={}", "x".repeat(STAMP_MAX + 1))), None);
    }

    proptest! {
        #[test]
        fn any_query_is_survived(query in "[a-z_=&.0-9%]{0,200}") {
            let _ = Positions::parse(&query);
        }
    }
}
