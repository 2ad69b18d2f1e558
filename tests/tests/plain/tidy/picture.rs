//! The picture of docs/ARCHITECTURE.md shows the packages, modules and imports that exist.

use super::source::Workspace;
use std::{io::ErrorKind, process::Command};

#[test]
fn the_picture_of_the_packages_is_up_to_date() {
    let workspace = Workspace::load();
    let cargo = option_env!("CARGO").unwrap_or("cargo");
    let check = Command::new("python3")
        .args(["docs/architecture.py", "--check"])
        .current_dir(&workspace.root)
        .env("CARGO", cargo)
        .output();
    match check {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) if error.kind() == ErrorKind::NotFound => eprintln!("there is no python3: nothing was checked"),
        Err(error) => panic!("python3: {error}"),
    }
}
