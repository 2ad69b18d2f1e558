//! The command of a worker: its Python and script, and whether both exist. Reads the file system, starts nothing.

use super::{Flags, RunError};
use crate::facts::{self, Facts};
use enn_cluster::supervise::Command;
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    path::Path,
};

/// Runs a file as __main__ in a fresh Python, as `torchrun --run-path` does. An exception is written to the worker's error file,
/// which torchrun does for functions that it starts; --run-path is one of those there.
const RUN_PATH: &str = "\
import os, runpy, sys
del sys.argv[0]
try:
    runpy.run_path(sys.argv[0], run_name='__main__')
except Exception as error:
    path = os.environ.get('TORCHELASTIC_ERROR_FILE')
    if path and not os.path.exists(path):
        import json, time, traceback
        info = {'py_callstack': traceback.format_exc(), 'timestamp': str(int(time.time()))}
        message = type(error).__name__ + ': ' + str(error)
        with open(path, 'w') as file:
            json.dump({'message': {'message': message, 'extraInfo': info}}, file)
    raise
";

/// Returns the command, and its name for people and for the run's directory.
pub(super) fn command(flags: &Flags, typed: &[OsString], facts: &Facts) -> Result<(Command, String), RunError> {
    let program_flags = &flags.program;
    let (script, own) = typed.split_first().map_or((OsStr::new(""), typed), |(script, own)| (script.as_os_str(), own));
    let name = Path::new(script).file_stem().unwrap_or(script).to_string_lossy().into_owned();
    if program_flags.no_python && !program_flags.run_path {
        if program_flags.module {
            let hint = "a module is run by Python; leave --no-python out";
            return Err(RunError::Together { first: "--no-python", second: "--module", hint });
        }
        let program = program(script, facts)?;
        return Ok((Command { program, args: own.to_vec() }, name));
    }
    let module = program_flags.module && !program_flags.run_path;
    if !module {
        check_script(script, facts)?;
    }
    let program = python(script, facts)?;
    let mut args: Vec<OsString> = vec!["-u".into()];
    match (program_flags.run_path, module) {
        (true, _) => args.extend(["-c".into(), RUN_PATH.into()]),
        (_, true) => args.push("-m".into()),
        _ => {}
    }
    args.push(script.to_owned());
    args.extend_from_slice(own);
    Ok((Command { program, args }, name))
}

pub(super) fn python(script: &OsStr, facts: &Facts) -> Result<OsString, RunError> {
    facts.script_python().ok_or_else(|| {
        let given = facts.python_exec.as_ref().map(|given| format!("{} (PYTHON_EXEC)", given.to_string_lossy()));
        let looked_for = given.unwrap_or_else(|| facts::PYTHONS.join(" or "));
        RunError::NoInterpreter { looked_for, script: script.to_string_lossy().into_owned() }
    })
}

fn program(name: &OsStr, facts: &Facts) -> Result<OsString, RunError> {
    if let Some(found) = facts.executable(name) {
        return Ok(found);
    }
    let path = facts.cwd.join(name);
    if has_slash(name) && path.is_file() {
        return Err(RunError::NotExecutable { path });
    }
    let hint = if !has_slash(name) && path.is_file() {
        "it is in this folder: write ./ before its name"
    } else {
        "check the spelling; without a slash it is looked up on PATH"
    };
    Err(RunError::Missing { path: name.into(), what: "program", hint })
}

/// Returns whether a text is the dotted name of a module.
pub(super) fn is_module(name: &str) -> bool {
    let part = |part: &str| {
        let mut letters = part.chars();
        letters.next().is_some_and(|first| first.is_alphabetic() || first == '_')
            && letters.all(|letter| letter.is_alphanumeric() || letter == '_')
    };
    name.split('.').all(part)
}

fn has_slash(name: &OsStr) -> bool {
    name.as_encoded_bytes().contains(&b'/')
}

/// Reports a missing script here: Python would report it once per worker, after its start.
fn check_script(script: &OsStr, facts: &Facts) -> Result<(), RunError> {
    // Python reads "-" from standard input.
    if script == "-" {
        return Ok(());
    }
    let path = facts.cwd.join(script);
    match File::open(&path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let hint = if facts.executable(script).is_some() {
                "a program of this name is on PATH: add --no-python to run it"
            } else {
                "check the path and the working directory; -m is for modules"
            };
            Err(RunError::Missing { path: script.into(), what: "script", hint })
        }
        Err(source) => Err(RunError::Unreadable { path: script.into(), source }),
    }
}
