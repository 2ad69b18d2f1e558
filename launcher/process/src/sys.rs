//! Starting a process without copying the launcher: clone with shared memory, where the parent waits until the exec, as in
//! posix_spawn, which does not support PDEATHSIG, CPUs and control groups. With 64 workers, forking costs ten times more.
//!
//! **Invariant:** between clone and exec the child runs in the launcher's memory: it calls async-signal-safe functions only,
//! allocates no memory, writes only its error, and no signal handler runs in it.
//!
//! Source: clone(2), posix_spawn(3), and "Writing a safe vfork" in vfork(2)'s notes.

use super::unix::Binding;
use nix::unistd::Pid;
use std::{
    ffi::{CString, OsStr, OsString, c_char, c_int, c_void},
    io,
    mem::MaybeUninit,
    os::{
        fd::RawFd,
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::Path,
    process::Command,
    ptr,
    sync::atomic::{AtomicI32, Ordering},
};

/// Stack of the child until its exec; it needs less than a tenth.
const STACK_BYTES: usize = 64 << 10;
/// Alignment of a stack in bytes on all supported machines.
const STACK_ALIGN: usize = 16;
/// Exit code of a child that cannot exec; it is not reported.
const CODE_NO_EXEC: c_int = 127;

/// Everything the child needs, prepared before the clone.
struct Prepared {
    program: CString,
    argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
    streams: [Option<RawFd>; 3],
    binding: Binding,
    parent: c_int,
    error: AtomicI32,
}

/// Starts `command` (its program, arguments and variables; its streams are ignored) as the leader of a new group, or
/// session, that dies with this thread. `streams` are standard input, output and error; `None` is inherited.
pub(super) fn spawn(command: &Command, streams: [Option<RawFd>; 3], binding: Binding) -> io::Result<Pid> {
    let variables = variables_of(command);
    let program = find(command.get_program(), &variables)?;
    let text = |text: &OsStr| CString::new(text.as_bytes()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    let args = std::iter::once(command.get_program()).chain(command.get_args()).map(text);
    let args: Vec<CString> = args.collect::<io::Result<_>>()?;
    let variables = variables.into_iter().map(|(mut name, value)| {
        name.push("=");
        name.push(value);
        CString::new(name.into_vec()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
    });
    let variables: Vec<CString> = variables.collect::<io::Result<_>>()?;
    let pointers = |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect();
    let prepared = Prepared {
        program: text(program.as_ref())?,
        argv: pointers(&args),
        envp: pointers(&variables),
        streams,
        binding,
        parent: Pid::this().as_raw(),
        error: AtomicI32::new(0),
    };
    let pid = clone(&prepared)?;
    match prepared.error.load(Ordering::Acquire) {
        0 => Ok(pid),
        errno => {
            // The child never executed the program.
            let _reaped = nix::sys::wait::waitpid(pid, None);
            Err(io::Error::from_raw_os_error(errno))
        }
    }
}

/// Returns the variables of a child that `command` starts: this process's with the command's changes.
pub fn variables_of(command: &Command) -> Vec<(OsString, OsString)> {
    let mut variables: std::collections::BTreeMap<OsString, OsString> = std::env::vars_os().collect();
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => variables.insert(name.to_owned(), value.to_owned()),
            None => variables.remove(name),
        };
    }
    variables.into_iter().collect()
}

/// Returns the file that `command` executes.
///
/// # Errors
/// No such file may be executed.
pub fn program_file(command: &Command) -> io::Result<OsString> {
    find(command.get_program(), &variables_of(command))
}

/// Returns the file of a program: itself when it has a slash, else the first executable of that name on the child's PATH.
fn find(program: &OsStr, variables: &[(OsString, OsString)]) -> io::Result<OsString> {
    if program.as_bytes().contains(&b'/') {
        return Ok(program.to_owned());
    }
    let path =
        variables.iter().find(|(name, _)| name == "PATH").map_or(OsStr::new("/bin:/usr/bin"), |(_, value)| value);
    let mut refused = io::ErrorKind::NotFound;
    for dir in std::env::split_paths(path) {
        let file = Path::new(".").join(dir).join(program);
        if !file.is_file() {
            continue;
        }
        match nix::unistd::access(&file, nix::unistd::AccessFlags::X_OK) {
            Ok(()) => return Ok(file.into_os_string()),
            Err(_) => refused = io::ErrorKind::PermissionDenied,
        }
    }
    let errno = if refused == io::ErrorKind::NotFound { libc::ENOENT } else { libc::EACCES };
    Err(io::Error::from_raw_os_error(errno))
}

fn clone(prepared: &Prepared) -> io::Result<Pid> {
    let mut stack: Vec<u8> = Vec::with_capacity(STACK_BYTES);
    // SAFETY: the end of the allocation, rounded down to a stack's alignment, stays inside it.
    let top = unsafe {
        let end = stack.as_mut_ptr().add(STACK_BYTES);
        end.sub(end as usize % STACK_ALIGN)
    };
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: the sets are initialised by sigfillset and by pthread_sigmask. The child runs on a stack of its own and reads
    // `prepared` only, both of which outlive it here: CLONE_VFORK lets this thread go on when the child has left this
    // memory. All signals are blocked meanwhile, so that no handler runs in the child.
    let (pid, error) = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let pid = libc::clone(child, top.cast(), flags, ptr::from_ref(prepared).cast_mut().cast());
        let error = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
        (pid, error)
    };
    if pid < 0 { Err(error) } else { Ok(Pid::from_raw(pid)) }
}

extern "C" fn child(prepared: *mut c_void) -> c_int {
    // SAFETY: `clone` passes a Prepared that lives until this process has executed its program or ended.
    let prepared = unsafe { &*prepared.cast::<Prepared>() };
    // SAFETY: this is the child, as `become_program` requires.
    let errno = unsafe { become_program(prepared) };
    prepared.error.store(errno, Ordering::Release);
    // SAFETY: ends this process without anything of the launcher's.
    unsafe { libc::_exit(CODE_NO_EXEC) }
}

/// Executes the program; returns only when something fails, with the errno.
///
/// # Safety
/// Must be called in the child only: it changes descriptors, signals and the group of the process, and then its program.
unsafe fn become_program(prepared: &Prepared) -> c_int {
    // SAFETY: errno is this thread's.
    let errno = || unsafe { *libc::__errno_location() };
    let binding = &prepared.binding;
    // SAFETY: system calls on this process with values that live in `prepared`; none takes memory or a lock.
    unsafe {
        let leads = if binding.session { libc::setsid() } else { libc::setpgid(0, 0) };
        if leads < 0 {
            return errno();
        }
        if !binding.outlives {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return errno();
            }
            // The parent may have died before the line above: then no signal will come.
            if libc::getppid() != prepared.parent {
                return libc::ESRCH;
            }
        }
        // The write fails when the group was removed: the process is still bound in every other way.
        if let Some(fd) = binding.cgroup {
            libc::write(fd, c"0".as_ptr().cast(), 1);
        }
        if let Some(cpus) = &binding.cpus
            && libc::sched_setaffinity(0, size_of_val(cpus), ptr::from_ref(cpus).cast()) != 0
        {
            return errno();
        }
        if let Some(fd) = binding.inherit
            && libc::fcntl(fd, libc::F_SETFD, 0) != 0
        {
            return errno();
        }
        for (number, stream) in (0..).zip(prepared.streams) {
            if let Some(fd) = stream
                && libc::dup2(fd, number) < 0
            {
                return errno();
            }
        }
        // Rust ignores SIGPIPE, and an ignored signal stays ignored across an exec; handlers do not.
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let mut none = MaybeUninit::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
        libc::execve(prepared.program.as_ptr(), prepared.argv.as_ptr(), prepared.envp.as_ptr());
        errno()
    }
}
