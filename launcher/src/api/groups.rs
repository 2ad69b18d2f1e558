//! The groups by which rows are evaluated.

use crate::{Error, error::Usage};
use enn_common::{
    config::data::{DataConfig, Layout},
    staged::Staged,
};
use enn_data::stage as stager;

const GROUPS_MAX: usize = 1_000;
/// The column name that groups windows by their first month.
const MONTH: &str = "month";
/// Length of the prefix of a window's name that contains its month.
const MONTH_CHARS: usize = 7;

/// Returns the group of every row and the names of the groups: the words of `column`, or the months of windows.
pub(super) fn of(data: &DataConfig, column: &str, staged: &Staged) -> Result<(Vec<usize>, Vec<String>), Error> {
    let words = words(data, column, staged)?;
    let mut groups = words.clone();
    groups.sort_unstable();
    groups.dedup();
    if groups.len() > GROUPS_MAX {
        return Err(Error::Usage(Usage::Groups { column: column.to_owned(), found: groups.len(), limit: GROUPS_MAX }));
    }
    let place = |word: &String| groups.binary_search(word).unwrap_or(0);
    Ok((words.iter().map(place).collect(), groups))
}

fn words(data: &DataConfig, column: &str, staged: &Staged) -> Result<Vec<String>, Error> {
    let names = &staged.meta().row_names;
    match data.layout {
        Layout::Windows(_) if column == MONTH && !names.is_empty() => {
            Ok(names.iter().map(|name| name.chars().take(MONTH_CHARS).collect()).collect())
        }
        Layout::Rows(_) => Ok(stager::labels(data, column, staged)?),
        _ => Err(Error::Usage(Usage::Group { column: column.to_owned() })),
    }
}
