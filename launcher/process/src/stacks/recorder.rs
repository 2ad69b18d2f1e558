//! NCCL's flight recorder in PyTorch: the path of a process's dump, and its trigger.
//!
//! Source: torch 2.11 (ProcessGroupNCCL, FlightRecorder). The dump of rank r is `<prefix>r` with the prefix from
//! TORCH_FR_DUMP_TEMP_FILE, else TORCH_NCCL_DEBUG_INFO_TEMP_FILE, else `comm_lib_trace_rank_` in torch's cache directory
//! (`nccl_trace_rank_` there or in /tmp before 2.9). With TORCH_NCCL_DEBUG_INFO_PIPE_FILE a process has a named pipe
//! `<that>r.pipe`; any byte written to it triggers a dump. **Invariant:** only the environment of the process itself counts.

use super::proc;
use std::{
    ffi::OsStr,
    fs::OpenOptions,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Paths of one process's flight recorder.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Recorder {
    /// Possible paths of the dump, likeliest first.
    pub(super) dumps: Vec<PathBuf>,
    /// Named pipe that triggers a dump.
    pub(super) pipe: Option<PathBuf>,
}

impl Recorder {
    /// Derives the paths from the environment of the process, as /proc has it. Pure.
    pub(super) fn new(environ: &[u8], rank: u32) -> Self {
        let variable = |name| proc::variable(environ, name);
        let numbered = |prefix: &OsStr, end: &str| {
            let mut path = prefix.to_owned();
            path.push(format!("{rank}{end}"));
            PathBuf::from(path)
        };
        let named = variable("TORCH_FR_DUMP_TEMP_FILE").or_else(|| variable("TORCH_NCCL_DEBUG_INFO_TEMP_FILE"));
        let dumps = match named {
            Some(prefix) => vec![numbered(&prefix, "")],
            None => {
                let home = variable("HOME").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
                let cache = variable("XDG_CACHE_HOME").map_or_else(|| home.join(".cache"), PathBuf::from).join("torch");
                let places = [(cache.clone(), "comm_lib"), (cache, "nccl"), ("/tmp".into(), "nccl")];
                places.map(|(dir, kind)| dir.join(format!("{kind}_trace_rank_{rank}"))).into()
            }
        };
        let pipe = variable("TORCH_NCCL_DEBUG_INFO_PIPE_FILE").map(|prefix| numbered(&prefix, ".pipe"));
        Self { dumps, pipe }
    }

    /// Triggers a dump; returns whether a process reads the pipe. Never waits: a pipe without a reader refuses.
    pub(super) fn trigger(&self) -> bool {
        let Some(pipe) = &self.pipe else { return false };
        let is_pipe = |file: &std::fs::File| {
            use std::os::unix::fs::FileTypeExt;
            file.metadata().is_ok_and(|meta| meta.file_type().is_fifo())
        };
        let opened: io::Result<_> = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(pipe);
        opened.is_ok_and(|mut file| is_pipe(&file) && file.write_all(b"1").is_ok())
    }

    /// Returns the dump, when there is one that is not older than `since`.
    pub(super) fn dump(&self, since: SystemTime) -> Option<&Path> {
        let fresh = |path: &&PathBuf| {
            let meta = path.metadata();
            meta.is_ok_and(|meta| meta.is_file() && meta.modified().is_ok_and(|time| time >= since))
        };
        self.dumps.iter().find(fresh).map(PathBuf::as_path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn places_follow_the_environment_of_the_process() {
        let plain = Recorder::new(b"A=1\0HOME=/home/u\0", 3);
        assert_eq!(plain.dumps[0], Path::new("/home/u/.cache/torch/comm_lib_trace_rank_3"));
        assert_eq!(plain.dumps[2], Path::new("/tmp/nccl_trace_rank_3"));
        assert_eq!(plain.pipe, None);
        let cache = Recorder::new(b"XDG_CACHE_HOME=/c\0HOME=/home/u\0", 0);
        assert_eq!(cache.dumps[0], Path::new("/c/torch/comm_lib_trace_rank_0"));
        let text = b"TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/old_\0TORCH_FR_DUMP_TEMP_FILE=/d/fr_\0TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/d/p_";
        let set = Recorder::new(text, 12);
        assert_eq!(set, Recorder { dumps: vec!["/d/fr_12".into()], pipe: Some("/d/p_12.pipe".into()) });
    }

    #[test]
    fn a_dump_is_triggered_through_the_pipe_and_old_ones_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let recorder = Recorder { dumps: vec![at("dump")], pipe: Some(at("p0.pipe")) };
        assert!(!recorder.trigger());
        nix::unistd::mkfifo(&at("p0.pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(!recorder.trigger(), "nobody reads");
        let mut reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(at("p0.pipe")).unwrap();
        assert!(recorder.trigger());
        let mut byte = [0; 8];
        assert_eq!(io::Read::read(&mut reader, &mut byte).unwrap(), 1);
        std::fs::write(at("dump"), "x").unwrap();
        let now = SystemTime::now();
        assert_eq!(recorder.dump(now - Duration::from_secs(60)), Some(at("dump").as_path()));
        assert_eq!(recorder.dump(now + Duration::from_secs(60)), None);
    }
}
