//! The check whether a program is linked to libtorch without naming its directory: the dynamic section of a 64-bit ELF file.
//!
//! Source: the System V ABI, "Object Files" and "Dynamic Linking".

use super::release::CPU_LIBRARY;
use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, File},
    os::unix::{ffi::OsStringExt, fs::FileExt},
    path::{Path, PathBuf},
};

/// First bytes of a file: ELF, 64 bits, little-endian.
const MAGIC: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
/// Limits on the parts of a file that are read.
const SEGMENTS_MAX: usize = 256;
const DYNAMIC_BYTES_MAX: u64 = 1 << 16;
const NAMES_BYTES_MAX: u64 = 16 << 20;
/// The system's cache of libraries: paths that end in zeros, after numbers.
const CACHE: &str = "/etc/ld.so.cache";
const CACHE_BYTES_MAX: u64 = 16 << 20;
/// Types of segments (p_type) and of dynamic entries (d_tag).
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const NEEDED: u64 = 1;
const STRTAB: u64 = 5;
const STRSZ: u64 = 10;
const RPATH: u64 = 15;
const RUNPATH: u64 = 29;

/// Libraries that a program needs.
#[derive(Debug, PartialEq, Eq, Default)]
struct Linked {
    needed: Vec<OsString>,
    /// Directories that the program names itself, unexpanded.
    paths: Vec<OsString>,
}

/// Returns whether `program` is linked to libtorch, and neither it nor `library_path` nor the system names its directory.
pub(crate) fn needs_libtorch(program: &Path, library_path: Option<&OsStr>) -> bool {
    // Programs are linked to the CPU library, or to libtorch.so, which needs it.
    [CPU_LIBRARY, "libtorch.so"].iter().any(|library| needs(program, library, library_path, Path::new(CACHE)))
}

fn needs(program: &Path, library: &str, library_path: Option<&OsStr>, cache: &Path) -> bool {
    let Some(linked) = Linked::of(program) else { return false };
    let own = linked.paths.iter().flat_map(|paths| env::split_paths(paths).collect::<Vec<_>>());
    let own = own.map(|dir| from_origin(&dir, program));
    let mut known = own.chain(library_path.into_iter().flat_map(|paths| env::split_paths(paths).collect::<Vec<_>>()));
    linked.needed.iter().any(|name| name == library)
        && !known.any(|dir| dir.join(library).exists())
        && !is_in_cache(library, cache)
}

/// Returns whether the system's cache has a library of this name.
fn is_in_cache(library: &str, cache: &Path) -> bool {
    let small = fs::metadata(cache).is_ok_and(|found| found.len() <= CACHE_BYTES_MAX);
    let name = format!("/{library}\0");
    small && fs::read(cache).is_ok_and(|bytes| memchr::memmem::find(&bytes, name.as_bytes()).is_some())
}

/// Replaces `$ORIGIN` at the front of a directory by the program's directory.
fn from_origin(dir: &Path, program: &Path) -> PathBuf {
    let mut parts = dir.iter();
    match parts.next().and_then(OsStr::to_str) {
        Some("$ORIGIN" | "${ORIGIN}") => {
            let program = program.canonicalize().unwrap_or_else(|_| program.to_owned());
            program.parent().unwrap_or(Path::new("/")).join(parts.as_path())
        }
        _ => dir.to_owned(),
    }
}

impl Linked {
    /// Reads the dynamic section; `None` when the file is no such ELF file, or is inconsistent.
    fn of(program: &Path) -> Option<Self> {
        let file = File::open(program).ok()?;
        let header: Vec<u8> = read(&file, 0, HEADER_BYTES)?;
        if header[..MAGIC.len()] != MAGIC {
            return None;
        }
        let at = u64_at(&header, 32)?;
        let count = usize::from(u16_at(&header, 56)?).min(SEGMENTS_MAX);
        let table = read(&file, at, count * SEGMENT_BYTES)?;
        let segments: Vec<&[u8]> = table.chunks_exact(SEGMENT_BYTES).collect();
        let dynamic = segments.iter().find(|segment| u32_at(segment, 0) == Some(DYNAMIC))?;
        let bytes = u64_at(dynamic, 32)?.min(DYNAMIC_BYTES_MAX);
        let entries = read(&file, u64_at(dynamic, 8)?, usize::try_from(bytes).ok()?)?;
        let entries: Vec<(u64, u64)> =
            entries.chunks_exact(16).filter_map(|entry| Some((u64_at(entry, 0)?, u64_at(entry, 8)?))).collect();
        let value = |kind: u64| entries.iter().find(|(tag, _)| *tag == kind).map(|(_, value)| *value);
        let place = value(STRTAB).and_then(|address| in_file(&segments, address))?;
        let names = read(&file, place, usize::try_from(value(STRSZ)?.min(NAMES_BYTES_MAX)).ok()?)?;
        let all = |kinds: &[u64]| -> Vec<OsString> {
            let named = entries.iter().filter(|(tag, _)| kinds.contains(tag));
            named.filter_map(|(_, at)| name(&names, *at)).collect()
        };
        Some(Self { needed: all(&[NEEDED]), paths: all(&[RPATH, RUNPATH]) })
    }
}

/// Returns the file offset of an address.
fn in_file(segments: &[&[u8]], address: u64) -> Option<u64> {
    segments.iter().filter(|segment| u32_at(segment, 0) == Some(LOAD)).find_map(|segment| {
        let offset = u64_at(segment, 8)?;
        let first = u64_at(segment, 16)?;
        let size = u64_at(segment, 32)?;
        let within = address.checked_sub(first).filter(|within| *within < size)?;
        offset.checked_add(within)
    })
}

fn name(names: &[u8], at: u64) -> Option<OsString> {
    let rest = names.get(usize::try_from(at).ok()?..)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    Some(OsString::from_vec(rest[..end].to_vec()))
}

fn read(file: &File, at: u64, bytes: usize) -> Option<Vec<u8>> {
    let mut found = vec![0; bytes];
    file.read_exact_at(&mut found, at).ok()?;
    Some(found)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_says_what_it_needs_and_a_cut_one_says_nothing() {
        let exe = env::current_exe().unwrap();
        let linked = Linked::of(&exe).unwrap();
        assert!(linked.needed.iter().any(|name| name == "libc.so.6"), "{linked:?}");
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("cache");
        let has = |library: &str, path: Option<&OsStr>| needs(&exe, library, path, &cache);
        assert!(has("libc.so.6", None) && !has(CPU_LIBRARY, None));
        fs::write(&cache, "\u{1}libc.so.6\0/lib/libc.so.60\0").unwrap();
        assert!(has("libc.so.6", None), "another of the system's");
        fs::write(&cache, "\u{1}libc.so.6\0/lib/libc.so.6\0").unwrap();
        assert!(!has("libc.so.6", None), "the system says where it is");
        fs::remove_file(&cache).unwrap();
        fs::write(dir.path().join("libc.so.6"), "").unwrap();
        assert!(!has("libc.so.6", Some(dir.path().as_os_str())), "the path says where it is");
        let whole = fs::read(&exe).unwrap();
        let cut = dir.path().join("cut");
        for bytes in [0, 5, 63, 64, 100, 500, 4096] {
            fs::write(&cut, &whole[..bytes.min(whole.len())]).unwrap();
            assert!(!needs_libtorch(&cut, None));
        }
        fs::write(&cut, "#!/bin/sh\n").unwrap();
        assert_eq!(Linked::of(&cut), None);
    }

    #[test]
    fn a_path_of_its_own_begins_at_the_program() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        fs::write(&program, "").unwrap();
        let here = dir.path().canonicalize().unwrap();
        assert_eq!(from_origin(Path::new("$ORIGIN/../lib"), &program), here.join("../lib"));
        assert_eq!(from_origin(Path::new("/opt/lib"), &program), Path::new("/opt/lib"));
    }
}
