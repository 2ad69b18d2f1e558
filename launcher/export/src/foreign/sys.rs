//! Functions of a shared library, found by their symbols.
//!
//! **Invariant:** a library is never unloaded: its threads continue, and pointers into it remain.

/// Defines a struct of functions, and `load`, which finds all of them or names the missing one.
macro_rules! functions {
    ($(#[$about:meta])* $name:ident { $($field:ident = $symbol:literal ($($argument:ty),*) $(-> $answer:ty)?;)* }) => {
        $(#[$about])*
        pub(super) struct $name {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)*
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($name))
            }
        }

        impl $name {
            pub(super) fn load(path: &std::path::Path) -> Result<&'static Self, String> {
                // The linker's message is the source of the error.
                let words = |error: libloading::Error| match std::error::Error::source(&error) {
                    Some(source) => format!("{error}: {source}"),
                    None => error.to_string(),
                };
                // SAFETY: the library is one that its user named as this runtime's; its initialisers are the runtime's own.
                let library: &'static libloading::Library = Box::leak(Box::new(unsafe { libloading::Library::new(path) }.map_err(words)?));
                let functions = Self {
                    // SAFETY: the types are those of the runtime's header.
                    $($field: *unsafe { library.get($symbol) }.map_err(words)?,)*
                };
                Ok(Box::leak(Box::new(functions)))
            }
        }
    };
}

pub(crate) use functions;
