//! The page of `enn kernels`: per operation what ran, in which order kernels are tried, what was passed over and why, and
//! what is in quarantine until when.
//!
//! **Invariant:** it shows kernels.json and decides nothing.

use super::{error::KernelsError, format};
use enn_common::kernels::{self, KernelBook, OpKernels, Quarantine};
use std::{fmt::Write, io, path::Path};

/// Columns of an operation's name.
const NAME_WIDTH: usize = 20;

/// Reads a run's kernels.json; an empty book when no worker has reported yet.
///
/// # Errors
/// The file cannot be read, or is one of another version.
pub fn read(run: &Path) -> Result<KernelBook, KernelsError> {
    let path = run.join(kernels::FILE);
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(KernelBook::default()),
        Err(source) => return Err(KernelsError::Read { path, source }),
    };
    let book: KernelBook =
        serde_json::from_slice(&text).map_err(|source| KernelsError::Json { path: path.clone(), source })?;
    if book.version == kernels::VERSION { Ok(book) } else { Err(KernelsError::Version { path, found: book.version }) }
}

/// Formats the page of `enn kernels`.
pub fn text(book: &KernelBook) -> String {
    let mut page = String::new();
    if book.ops.is_empty() {
        page.push_str(
            "no kernels are recorded: no epoch is finished, or no operation of this model has more than one\n",
        );
    }
    for op in book.ops.values() {
        operation(&mut page, op);
    }
    if book.quarantine.is_empty() {
        page.push_str("quarantine: empty\n");
    } else {
        page.push_str("quarantine\n");
        book.quarantine.iter().for_each(|entry| quarantined(&mut page, entry));
    }
    page
}

fn operation(page: &mut String, op: &OpKernels) {
    let forced = if op.forced { " (as configured)" } else { "" };
    let order = op.order.join(", ");
    // Writing to a String does not fail.
    let _ = writeln!(page, "{:NAME_WIDTH$} tries {order}{forced}", op.op);
    for (kernel, calls) in &op.ran {
        let checked = if calls.checked > 0 {
            format!(", right on {}", format::plural(calls.checked, "signature"))
        } else {
            String::new()
        };
        let _ = writeln!(page, "{:NAME_WIDTH$}   ran {kernel}: {}{checked}", "", format::plural(calls.calls, "call"));
    }
    for (reason, calls) in &op.passed_over {
        let _ = writeln!(page, "{:NAME_WIDTH$}   not {reason}: {}", "", format::plural(*calls, "call"));
    }
}

fn quarantined(page: &mut String, entry: &Quarantine) {
    let steps = if entry.first_step == entry.last_step {
        format!("at step {}", format::count(entry.first_step))
    } else {
        format!(
            "{} times, steps {} to {}",
            entry.count,
            format::count(entry.first_step),
            format::count(entry.last_step)
        )
    };
    let then = match (entry.recovered, entry.retry_at()) {
        (Some(step), _) => format!("right again at step {}", format::count(step)),
        (None, Some(step)) => format!("tried again at step {}, or by another build", format::count(step)),
        (None, None) => "until another build of the worker".to_owned(),
    };
    let _ = writeln!(page, "  {}\n    {steps}; {then}", entry.sentence());
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::kernels::{Fault, KernelCalls, KernelFault};

    #[test]
    fn the_page_says_what_ran_what_did_not_and_why() {
        let mut book = KernelBook::default();
        assert!(text(&book).contains("no epoch is finished"));
        let mut op =
            OpKernels { op: "sdpa".into(), order: vec!["flash".into(), "plain".into()], ..OpKernels::default() };
        op.forced = true;
        op.ran.insert("flash".into(), KernelCalls { calls: 1200, checked: 1 });
        op.passed_over.insert("flash: quarantine".into(), 3);
        book.ran(vec![op]);
        let fault = |fault, step| KernelFault {
            op: "sdpa".into(),
            kernel: "flash".into(),
            sig: 1,
            operands: "f32[2,3]".into(),
            fault,
            step,
        };
        book.enter(fault(Fault::NonFinite, 7), "b");
        let page = text(&book);
        assert!(page.contains("sdpa                 tries flash, plain (as configured)"), "{page}");
        assert!(page.contains("ran flash: 1,200 calls, right on 1 signature"), "{page}");
        assert!(page.contains("not flash: quarantine: 3 calls"), "{page}");
        assert!(page.contains("kernel flash of sdpa on f32[2,3] is not finite where the plain reference is"), "{page}");
        assert!(page.contains("at step 7; tried again at step 71"), "{page}");
        book.enter(fault(Fault::Crash { how: "SIGSEGV".into() }, 8), "b");
        assert!(text(&book).contains("2 times, steps 7 to 8; until another build of the worker"), "{}", text(&book));
    }

    #[test]
    fn a_file_of_another_version_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), KernelBook::default());
        let book = KernelBook { version: 9, ..KernelBook::default() };
        std::fs::write(dir.path().join(kernels::FILE), serde_json::to_vec(&book).unwrap()).unwrap();
        assert!(read(dir.path()).unwrap_err().to_string().contains("version 9"));
    }
}
