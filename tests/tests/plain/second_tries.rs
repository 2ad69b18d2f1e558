//! What continuous integration says of tests that passed only when they were tried again.

use std::{fs, path::Path, process::Command};

#[test]
fn tests_that_needed_a_second_try_are_listed_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let junit = dir.path().join("junit.xml");
    let again = dir.path().join("again");
    fs::write(
        &junit,
        r#"<testsuites><testsuite name="enn-tests::agent">
<testcase name="sound" classname="enn-tests::agent"/>
<testcase name="flaky" classname="enn-tests::agent"><flakyFailure type="test failure"/></testcase>
<testcase name="broken" classname="enn-tests::agent"><failure type="test failure"/><rerunFailure type="test failure"/></testcase>
</testsuite></testsuites>"#,
    )
    .unwrap();
    fs::write(&again, "conformance launcher_pytorch Case.test_x\n").unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let listed = |files: &[&Path]| {
        let done = Command::new("python3").arg(root.join(".ci/second_tries.py")).args(files).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    };
    assert_eq!(
        listed(&[&junit, &again]),
        "tests that needed a second try: 2\n  enn-tests::agent flaky\n  conformance launcher_pytorch Case.test_x\n"
    );
    assert_eq!(listed(&[&dir.path().join("none")]), "tests that needed a second try: 0\n");
    let config = fs::read_to_string(root.join(".config/nextest.toml")).unwrap();
    assert!(config.contains("[profile.default.junit]"), "the report that is read is written");
}
