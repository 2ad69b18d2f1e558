//! Roles of the columns of a table in a training: targets, inputs, and what is left out with its reason. Pure.

use super::{
    facts::ColumnFacts,
    guess::{ColumnGuess, GuessedKind, percent},
    names,
    sample::{SampledColumn, TableSample},
    signal::{WordColumn, signal},
    steps,
    survey_error::SurveyError,
    target::{TargetTask, refuse_constant, task_of},
};
use crate::stage::source::block::NO_WORD;

/// Share of a target that a column explains alone from which on it is a likely leak: by itself, and with the target's name in its own.
const LEAK_SHARE: f64 = 0.997;
const NAMED_LEAK_SHARE: f64 = 0.5;
/// Share of a target that is worth a remark.
const REMARKABLE_SHARE: f64 = 0.9;
/// Similarity (Jaro–Winkler) of a name that is suggested, and how many are.
const NEAR: f64 = 0.65;
const NEAR_MAX: usize = 3;
/// The rule by which the latest rows are for validation and test.
const CHRONOLOGICAL: &str = "chronological";
/// Degrees of a direction at most.
const CIRCLE: f64 = 360.0;

/// The roles that somebody gives to columns.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ColumnChoices {
    pub targets: Vec<String>,
    pub time: Option<String>,
    /// Column that tells the series of a forecast apart.
    pub series: Option<String>,
    /// Steps to forecast.
    pub horizon: Option<usize>,
    pub task: Option<TargetTask>,
    /// The only inputs; empty: all columns that seem to be of use.
    pub features: Vec<FeatureChoice>,
    /// Columns that are not used.
    pub exclude: Vec<String>,
    /// Columns that are categories, whatever their values are.
    pub categories: Vec<String>,
    /// Column with the weight of each row.
    pub weight: Option<String>,
    /// Column whose rows stay together when the table is split.
    pub group: Option<String>,
}

/// An input that somebody names.
#[derive(Debug, Clone, PartialEq)]
pub struct FeatureChoice {
    pub column: String,
    /// The input as the configuration is to have it, in TOML; `None`: its kind is guessed.
    pub written: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ColumnRole {
    Target,
    Input,
    /// Not used, for this reason.
    LeftOut(String),
    /// Not used, as somebody asked.
    Unused,
    Time,
    Series,
    Weight,
    Group,
}

#[derive(Debug, Clone, PartialEq)]
pub struct RoledColumn {
    pub guess: ColumnGuess,
    pub role: ColumnRole,
    /// What a person should look at.
    pub remark: Option<String>,
}

/// Windows of a forecast.
#[derive(Debug, Clone, PartialEq)]
pub struct ProposedWindows {
    pub series: String,
    pub time: String,
    pub step_s: i64,
    pub steps: usize,
    /// Whether the target's own past is an input.
    pub has_target: bool,
    /// Inputs in degrees.
    pub circular: Vec<String>,
    /// Whether times are running numbers or seconds, not dates.
    pub is_number: bool,
}

/// The split of a table whose rows are samples, by a column.
#[derive(Debug, Clone, PartialEq)]
pub struct ProposedSplit {
    /// Name of the rule.
    pub rule: &'static str,
    pub column: String,
    /// Whether the rows are divided by it; if not, it is only mentioned.
    pub is_used: bool,
    pub why: &'static str,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    pub columns: Vec<RoledColumn>,
    pub targets: Vec<String>,
    /// Task of the targets; a forecast predicts numbers.
    pub task: TargetTask,
    pub split: Option<ProposedSplit>,
    pub windows: Option<ProposedWindows>,
    pub weight: Option<String>,
    /// Inputs that somebody has written.
    pub features: Vec<FeatureChoice>,
    /// Whether inputs or kinds are chosen by somebody, so that no `features = "*"` means them.
    pub is_listed: bool,
    /// Whether the files, which declare missing cells, have texts that would mean one, as NA.
    pub has_missing_words: bool,
    /// Texts among numbers that are to mean "missing".
    pub missing: Vec<String>,
    pub rows: usize,
    pub rows_estimate: u64,
    pub is_whole: bool,
}

impl Proposal {
    #[must_use]
    pub fn inputs(&self) -> Vec<&RoledColumn> {
        self.columns.iter().filter(|column| column.role == ColumnRole::Input).collect()
    }

    /// Columns that are left out, with the reason.
    #[must_use]
    pub fn left_out(&self) -> Vec<(&ColumnGuess, &str)> {
        self.columns
            .iter()
            .filter_map(|column| match &column.role {
                ColumnRole::LeftOut(why) => Some((&column.guess, why.as_str())),
                _ => None,
            })
            .collect()
    }
}

impl TableSample {
    /// Returns a guess of each column, in the order of the table.
    #[must_use]
    pub fn guesses(&self) -> Vec<ColumnGuess> {
        self.columns.iter().map(|column| ColumnGuess::of(column, &ColumnFacts::of(column))).collect()
    }

    /// Returns the names that are most like `name`.
    #[must_use]
    pub fn near(&self, name: &str) -> Vec<String> {
        let lower = name.to_lowercase();
        let alike = |column: &SampledColumn| strsim::jaro_winkler(&lower, &column.name.to_lowercase());
        let mut near: Vec<(f64, &str)> =
            self.columns.iter().map(|column| (alike(column), column.name.as_str())).collect();
        near.retain(|(alike, _)| *alike >= NEAR);
        near.sort_by(|one, other| other.0.total_cmp(&one.0));
        near.dedup_by(|one, other| one.1 == other.1);
        near.into_iter().take(NEAR_MAX).map(|(_, name)| name.to_owned()).collect()
    }

    fn place(&self, flag: &'static str, name: &str) -> Result<usize, SurveyError> {
        self.columns.iter().position(|column| column.name == name).ok_or_else(|| SurveyError::NoColumn {
            flag,
            name: name.to_owned(),
            near: self.near(name),
            columns: self.columns.iter().map(|column| column.name.clone()).collect(),
        })
    }
}

/// Proposes a role for each column of a table.
///
/// # Errors
/// A choice of a column that is not there, or a target or time that nothing can be learned of.
pub fn propose(sample: &TableSample, choices: &ColumnChoices) -> Result<Proposal, SurveyError> {
    Proposer::new(sample, choices)?.propose()
}

struct Proposer<'a> {
    sample: &'a TableSample,
    choices: &'a ColumnChoices,
    facts: Vec<ColumnFacts>,
    guesses: Vec<ColumnGuess>,
    targets: Vec<usize>,
    time: Option<usize>,
    series: Option<usize>,
    weight: Option<usize>,
    group: Option<usize>,
    features: Vec<usize>,
    exclude: Vec<usize>,
}

impl<'a> Proposer<'a> {
    fn new(sample: &'a TableSample, choices: &'a ColumnChoices) -> Result<Self, SurveyError> {
        let facts: Vec<ColumnFacts> = sample.columns.iter().map(ColumnFacts::of).collect();
        let guesses = sample.columns.iter().zip(&facts).map(|(column, facts)| ColumnGuess::of(column, facts)).collect();
        let places = |flag: &'static str, names: &[String]| -> Result<Vec<usize>, SurveyError> {
            names.iter().map(|name| sample.place(flag, name)).collect()
        };
        let place =
            |flag: &'static str, name: &Option<String>| name.as_ref().map(|name| sample.place(flag, name)).transpose();
        let features: Vec<String> = choices.features.iter().map(|feature| feature.column.clone()).collect();
        let mut proposer = Self {
            sample,
            choices,
            facts,
            guesses,
            targets: places("--target", &choices.targets)?,
            time: place("--time", &choices.time)?,
            series: place("--series", &choices.series)?,
            weight: place("--weight", &choices.weight)?,
            group: place("--group", &choices.group)?,
            features: places("--feature", &features)?,
            exclude: places("--exclude", &choices.exclude)?,
        };
        proposer.check_roles()?;
        if let Some(time) = proposer.time {
            proposer.guesses[time].take_as_time(&proposer.facts[time]);
        }
        let categories = places("--category", &choices.categories)?;
        categories.into_iter().for_each(|at| proposer.guesses[at].take_as_category());
        Ok(proposer)
    }

    /// Refuses a column that has two roles.
    fn check_roles(&self) -> Result<(), SurveyError> {
        let mut taken: Vec<(usize, &'static str)> = self.targets.iter().map(|at| (*at, "--target")).collect();
        let single =
            [("--time", self.time), ("--series", self.series), ("--weight", self.weight), ("--group", self.group)];
        let roles = single.into_iter().filter_map(|(flag, at)| Some((flag, at?)));
        for (flag, at) in roles.chain(self.exclude.iter().map(|at| ("--exclude", *at))) {
            if let Some((_, role)) = taken.iter().find(|(known, _)| *known == at) {
                return Err(SurveyError::TwoRoles { flag, name: self.guesses[at].name.clone(), role });
            }
            taken.push((at, flag));
        }
        Ok(())
    }

    fn propose(self) -> Result<Proposal, SurveyError> {
        let is_forecast = self.series.is_some() || self.choices.horizon.is_some();
        let task = if is_forecast { self.forecast_task()? } else { self.task()? };
        let windows = if is_forecast { Some(self.windows()?) } else { None };
        let columns: Vec<RoledColumn> =
            (0..self.guesses.len()).map(|at| self.column(at, task, windows.as_ref())).collect();
        let split = if is_forecast { None } else { self.split(&columns)? };
        let mut missing: Vec<String> = Vec::new();
        let is_used = |column: &&RoledColumn| !matches!(column.role, ColumnRole::LeftOut(_) | ColumnRole::Unused);
        for column in columns.iter().filter(is_used) {
            let new = column.guess.odd_words.iter().filter(|word| !missing.contains(word)).cloned().collect::<Vec<_>>();
            missing.extend(new);
        }
        let has_missing_words = self
            .sample
            .columns
            .iter()
            .zip(&columns)
            .any(|(column, roled)| is_used(&roled) && column.has_missing_words());
        let proposal = Proposal {
            weight: self.choices.weight.clone(),
            features: self.choices.features.clone(),
            is_listed: !(self.choices.features.is_empty() && self.choices.categories.is_empty()),
            has_missing_words,
            columns,
            targets: self.choices.targets.clone(),
            task,
            split,
            windows,
            missing,
            rows: self.sample.rows,
            rows_estimate: self.sample.rows_estimate,
            is_whole: self.sample.is_whole,
        };
        if !is_forecast && proposal.inputs().is_empty() {
            let left = proposal.left_out().into_iter().map(|(guess, why)| format!("\n  {:?}: {why}", guess.name));
            return Err(SurveyError::NoInputs { targets: self.choices.targets.join(", "), left_out: left.collect() });
        }
        Ok(proposal)
    }

    /// Returns the task of all targets: classes are those of a single one.
    fn task(&self) -> Result<TargetTask, SurveyError> {
        let mut found = TargetTask::Regression;
        for target in &self.targets {
            let wanted = if self.targets.len() > 1 { Some(TargetTask::Regression) } else { self.choices.task };
            found = self.task_of(*target, wanted)?;
        }
        Ok(found)
    }

    fn forecast_task(&self) -> Result<TargetTask, SurveyError> {
        if self.targets.len() > 1 {
            return Err(SurveyError::Forecast("a forecast has one target, and several are named", "name one --target"));
        }
        if self.choices.task == Some(TargetTask::Classification) {
            return Err(SurveyError::Forecast("a forecast predicts numbers, not classes", "leave --task out"));
        }
        let target = self.targets[0];
        self.task_of(target, Some(TargetTask::Regression))
    }

    fn task_of(&self, target: usize, wanted: Option<TargetTask>) -> Result<TargetTask, SurveyError> {
        // Who names the task knows the target; training warns where there is nothing to learn.
        if self.choices.task.is_none() {
            refuse_constant(&self.sample.columns[target], &self.facts[target])?;
        }
        task_of(&self.sample.columns[target], &self.facts[target], &self.guesses[target], wanted)
    }

    fn windows(&self) -> Result<ProposedWindows, SurveyError> {
        let Some(time) = self.time else {
            return Err(SurveyError::Forecast("a forecast needs the column of times", "name it: --time COLUMN"));
        };
        let Some(series) = self.series else {
            return Err(SurveyError::Forecast(
                "a forecast needs the column that tells its series apart, and --series names none",
                "name it: --series COLUMN; for a single series add a column with the same text in each row",
            ));
        };
        let column = &self.sample.columns[time];
        let facts = &self.facts[time];
        let is_number = facts.is_whole();
        if !is_number && facts.time_rows < facts.known().max(1) {
            let hint = "convert the column; dates without dashes and day.month.year are not read";
            return Err(SurveyError::Time { name: column.name.clone(), found: self.guesses[time].found.clone(), hint });
        }
        let step_s = steps::usual_step(column, facts, self.sample.head_rows, is_number).unwrap_or(1);
        // Running numbers count steps, not seconds; neither has a calendar, as far as anybody can tell.
        let steps = self.choices.horizon.unwrap_or_else(|| steps::usual_horizon(step_s, is_number));
        let is_direction = |at: usize| {
            let facts = &self.facts[at];
            names::is_direction(&self.guesses[at].name)
                && facts.least >= 0.0
                && facts.most <= CIRCLE
                && !self.targets.contains(&at)
        };
        let circular = (0..self.guesses.len())
            .filter(|at| self.guesses[*at].kind == Some(GuessedKind::Number) && is_direction(*at));
        Ok(ProposedWindows {
            series: self.guesses[series].name.clone(),
            time: column.name.clone(),
            step_s,
            steps,
            has_target: self.features.is_empty() || self.features.contains(&self.targets[0]),
            circular: circular
                .filter(|at| self.guesses[*at].doubt.is_none() && !self.is_unused(*at))
                .map(|at| self.guesses[at].name.clone())
                .collect(),
            is_number,
        })
    }

    fn column(&self, at: usize, task: TargetTask, windows: Option<&ProposedWindows>) -> RoledColumn {
        let guess = self.guesses[at].clone();
        let mut remark = None;
        let role = match (&guess.doubt, windows) {
            _ if self.targets.contains(&at) => ColumnRole::Target,
            _ if self.series == Some(at) => ColumnRole::Series,
            _ if self.time == Some(at) && windows.is_some() => ColumnRole::Time,
            _ if self.weight == Some(at) => ColumnRole::Weight,
            _ if self.group == Some(at) => ColumnRole::Group,
            _ if self.is_unused(at) => ColumnRole::Unused,
            _ if self.features.contains(&at) => ColumnRole::Input,
            _ if self.time == Some(at) && guess.kind == Some(GuessedKind::Time) => ColumnRole::Input,
            (Some(doubt), _) => ColumnRole::LeftOut(doubt.clone()),
            (None, Some(_)) if guess.kind != Some(GuessedKind::Number) => {
                ColumnRole::LeftOut("no number: the inputs of a forecast are the history of numbers".into())
            }
            // A time says when a target was measured, and neighbouring times have similar targets.
            (None, _) if guess.kind == Some(GuessedKind::Time) => ColumnRole::Input,
            (None, Some(_)) => ColumnRole::Input,
            (None, None) => match self.leak(at, task) {
                Leak::Likely(why) => ColumnRole::LeftOut(why),
                Leak::Possible(why) => {
                    remark = Some(why);
                    ColumnRole::Input
                }
                Leak::None => ColumnRole::Input,
            },
        };
        RoledColumn { guess, role, remark }
    }

    /// Whether somebody asked for training without a column.
    fn is_unused(&self, at: usize) -> bool {
        self.exclude.contains(&at) || !self.features.is_empty() && !self.features.contains(&at)
    }

    /// Says whether a column seems to be made of a target.
    fn leak(&self, at: usize, task: TargetTask) -> Leak {
        let name = &self.guesses[at].name;
        let mut possible = Leak::None;
        for target in &self.targets {
            let target_name = &self.guesses[*target].name;
            let is_named = names::contains_target(name, target_name);
            let is_class = task == TargetTask::Classification;
            let Some(signal) = signal(self.words(at), self.words(*target), is_class) else { continue };
            let share = percent(signal.explained);
            if signal.is_same {
                return Leak::Likely(format!("likely leak: it is {target_name}, but for a factor and a constant"));
            }
            if signal.explained >= LEAK_SHARE {
                return Leak::Likely(format!("likely leak: it alone explains {share} of {target_name}"));
            }
            if is_named && signal.explained >= NAMED_LEAK_SHARE {
                return Leak::Likely(format!(
                    "likely leak: its name contains {target_name}, and it alone explains {share} of it"
                ));
            }
            if is_named {
                possible = Leak::Possible(format!(
                    "its name contains that of the target {target_name}: is it known before it?"
                ));
            } else if signal.explained >= REMARKABLE_SHARE {
                possible =
                    Leak::Possible(format!("it alone explains {share} of {target_name}: is it known before it?"));
            }
        }
        possible
    }

    fn words(&self, at: usize) -> WordColumn<'_> {
        let is_ordered = matches!(self.guesses[at].kind, Some(GuessedKind::Number | GuessedKind::Time));
        WordColumn { ids: &self.sample.columns[at].ids, facts: &self.facts[at], is_ordered }
    }

    /// Returns the column of times by which rows are divided: the named one, or the only one there is, if it looks like that of the rows.
    fn split(&self, columns: &[RoledColumn]) -> Result<Option<ProposedSplit>, SurveyError> {
        if let Some(group) = self.group {
            let column = self.guesses[group].name.clone();
            return Ok(Some(ProposedSplit { rule: "group", column, is_used: true, why: "--group names it" }));
        }
        if let Some(time) = self.time {
            let guess = &self.guesses[time];
            if guess.kind != Some(GuessedKind::Time) {
                let hint = "convert the column; or sort the table by it, and set kind = \"in_order\" in [data.split]";
                return Err(SurveyError::Time { name: guess.name.clone(), found: guess.found.clone(), hint });
            }
            let column = guess.name.clone();
            return Ok(Some(ProposedSplit { rule: CHRONOLOGICAL, column, is_used: true, why: "--time names it" }));
        }
        let times: Vec<usize> = (0..columns.len())
            .filter(|at| columns[*at].role == ColumnRole::Input && columns[*at].guess.kind == Some(GuessedKind::Time))
            .collect();
        let [only] = times.as_slice() else { return Ok(None) };
        let name = columns[*only].guess.name.clone();
        let is_sorted = self.is_sorted(*only);
        let of = |is_used, why| Some(ProposedSplit { rule: CHRONOLOGICAL, column: name.clone(), is_used, why });
        Ok(match (names::is_birth(&name), is_sorted, names::is_time(&name)) {
            (true, ..) => None,
            (false, true, _) => of(true, "the rows are sorted by it"),
            (false, false, true) => of(true, "the only column of times"),
            (false, false, false) => of(false, "if the model is to predict later rows than it has seen"),
        })
    }

    fn is_sorted(&self, at: usize) -> bool {
        let facts = &self.facts[at];
        let known = self.sample.columns[at].ids.iter().filter(|id| **id != NO_WORD);
        let times: Vec<Option<i64>> = known.map(|id| facts.times.get(*id as usize).copied().flatten()).collect();
        times.len() > 1 && times.iter().all(Option::is_some) && times.is_sorted()
    }
}

enum Leak {
    None,
    /// Left out.
    Likely(String),
    /// Kept, with a remark.
    Possible(String),
}
