//! Functions of a shared library, by their symbols.
//!
//! **Invariant:** a library is never unloaded: its threads go on, and what it gave away points into it.

/// A struct of functions, and `load`, which finds all of them or says which one is missing.
macro_rules! functions {
    ($(#[$about:meta])* $name:ident { $($field:ident = $symbol:literal ($($argument:ty),*) $(-> $answer:ty)?;)* }) => {
        $(#[$about])*
        pub(super) struct $name {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)*
        }

        impl $name {
            pub(super) fn load(path: &std::path::Path) -> Result<&'static Self, libloading::Error> {
                // SAFETY: the library is one that its user named as this runtime's; its initialisers are the runtime's own.
                let library: &'static libloading::Library = Box::leak(Box::new(unsafe { libloading::Library::new(path) }?));
                let functions = Self {
                    // SAFETY: the types are those of the runtime's header.
                    $($field: *unsafe { library.get($symbol) }?,)*
                };
                Ok(Box::leak(Box::new(functions)))
            }
        }
    };
}

pub(crate) use functions;
