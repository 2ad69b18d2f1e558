//! The macros that make the table of operations and its attributes.

/// Makes the types of attributes, structs of public fields or without any, and names the row of each: `Softmax { axis: i64 } => SOFTMAX;`.
macro_rules! attributes {
    (@type [$($doc:tt)*] $name:ident) => {
        $($doc)*
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub struct $name;
    };
    (@type [$($doc:tt)*] $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $($doc)*
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }
    };
    ($($(#[$doc:meta])* $name:ident $({ $($fields:tt)* })? $(=> $row:ident)?;)+) => {
        $(
            attributes! { @type [$(#[$doc])*] $name $({ $($fields)* })? }
            $(impl Operation for $name {
                const ROW: OpRow<Self> = $row;
            })?
        )+
    };
}

/// Makes [`Op`](super::Op), the lookup of a variant's row, and the list of all rows from one list: the operations of a file, and the file.
/// The attributes of an operation are a type of the variant's name in that file, with [`Operation`](super::row::Operation).
macro_rules! operations {
    ($($($operation:ident),+ => $family:ident :: $file:ident;)*) => {
        $(pub use $family::$file::{$($operation),+};)*

        /// Every operation of the worker, with its attributes.
        #[derive(Clone, PartialEq, Eq, Hash)]
        pub enum Op {
            $($($operation($operation),)+)*
        }

        impl Op {
            pub fn row(&self) -> &'static row::OpRow {
                match self {
                    $($(Self::$operation(it) => &<$operation as row::Variant>::rows()[row::Operation::row_index(it)],)+)*
                }
            }
        }

        impl std::fmt::Debug for Op {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $($(Self::$operation(it) => row::Operation::print(it, f),)+)*
                }
            }
        }

        $($(
            impl From<$operation> for Op {
                fn from(attributes: $operation) -> Self {
                    Self::$operation(attributes)
                }
            }

            impl row::Variant for $operation {
                fn of(op: &Op) -> &Self {
                    match op {
                        Op::$operation(attributes) => attributes,
                        other => unreachable!("{other:?} in the row of another operation"),
                    }
                }

                fn rows() -> &'static [row::OpRow] {
                    static ROWS: [row::OpRow; <$operation as row::Operation>::ROWS.len()] =
                        row::any_rows::<$operation, { <$operation as row::Operation>::ROWS.len() }>();
                    &ROWS
                }
            }
        )+)*

        /// Returns all rows of the table.
        pub fn rows() -> impl Iterator<Item = &'static row::OpRow> {
            [$($(<$operation as row::Variant>::rows()),+),*].into_iter().flatten()
        }
    };
}
