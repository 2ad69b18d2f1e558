//! Names of output cells such as `JFK.07h`, from the labels of the axes.

use std::collections::HashSet;

/// Names of other columns.
const RESERVED: [&str; 5] = ["", "row_id", "row_name", "label", "failed"];

/// Returns one unique name per cell, row-major over `out_shape`. If the labels do not fit the shape, a cell is named by its indices,
/// `y[0,7]`.
pub fn cell_names(out_shape: &[usize], out_labels: &[Vec<String>]) -> Vec<String> {
    let fits = out_labels.len() == out_shape.len() && out_labels.iter().zip(out_shape).all(|(l, &n)| l.len() == n);
    if fits && !out_shape.is_empty() {
        let named = product(out_labels, ".");
        let different: HashSet<&String> = named.iter().collect();
        let reserved = named.iter().any(|name| RESERVED.contains(&name.as_str()));
        if different.len() == named.len() && !reserved {
            return named;
        }
    }
    let indices: Vec<Vec<String>> =
        out_shape.iter().map(|&n| (0..n).map(|index| index.to_string()).collect()).collect();
    product(&indices, ",")
        .into_iter()
        .map(|name| if name.is_empty() { "y".to_owned() } else { format!("y[{name}]") })
        .collect()
}

fn product(axes: &[Vec<String>], between: &str) -> Vec<String> {
    axes.iter().fold(vec![String::new()], |names, axis| {
        let join = |name: &String, label: &String| {
            if name.is_empty() { label.clone() } else { format!("{name}{between}{label}") }
        };
        names.iter().flat_map(|name| axis.iter().map(move |label| join(name, label))).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axes: &[&[&str]]) -> Vec<Vec<String>> {
        axes.iter().map(|axis| axis.iter().map(|label| (*label).to_owned()).collect()).collect()
    }

    #[test]
    fn labels_are_joined_row_major() {
        let names = cell_names(&[2, 2], &labels(&[&["EWR", "JFK"], &["00h", "01h"]]));
        assert_eq!(names, ["EWR.00h", "EWR.01h", "JFK.00h", "JFK.01h"]);
    }

    #[test]
    fn labels_that_do_not_fit_or_repeat_give_indices() {
        assert_eq!(cell_names(&[1, 2], &labels(&[&["a"]])), ["y[0,0]", "y[0,1]"]);
        assert_eq!(cell_names(&[2], &labels(&[&["a", "a"]])), ["y[0]", "y[1]"]);
        assert_eq!(cell_names(&[1], &labels(&[&["row_id"]])), ["y[0]"]);
        assert_eq!(cell_names(&[], &[]), ["y"]);
    }
}
