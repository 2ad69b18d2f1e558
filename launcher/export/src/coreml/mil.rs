//! MIL, the language of Core ML's programs, as protocol buffers: element types, types, values, operations (MIL.proto of coremltools 9).

use crate::proto::Message;
use enn_common::graph::{DType, Dim};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MilKind {
    Bool,
    Text,
    F16,
    F32,
    I32,
}

impl MilKind {
    /// Returns the element type for one of a graph: integers have 32 bits, and bf16 becomes f32.
    pub(super) const fn of(dtype: DType) -> Self {
        match dtype {
            DType::F32 | DType::Bf16 => Self::F32,
            DType::F16 => Self::F16,
            DType::I64 => Self::I32,
            DType::Bool => Self::Bool,
        }
    }

    /// Returns the number in a type message.
    pub(super) const fn number(self) -> u64 {
        match self {
            Self::Bool => 1,
            Self::Text => 2,
            Self::F16 => 10,
            Self::F32 => 11,
            Self::I32 => 23,
        }
    }

    /// Returns the element type with this number in a type message.
    pub(super) fn numbered(number: u64) -> Option<Self> {
        [Self::Bool, Self::Text, Self::F16, Self::F32, Self::I32].into_iter().find(|kind| kind.number() == number)
    }

    /// Returns the number in the file of weights, which holds floats only.
    pub(super) const fn stored(self) -> Option<u32> {
        match self {
            Self::F16 => Some(1),
            Self::F32 => Some(2),
            Self::Bool | Self::Text | Self::I32 => None,
        }
    }

    /// Returns the number for a model's inputs and outputs, which have no booleans.
    pub(super) const fn of_port(self) -> u64 {
        match self {
            Self::F16 => 65_552,
            Self::F32 => 65_568,
            Self::Bool | Self::Text | Self::I32 => 131_104,
        }
    }

    /// Returns the name in a cast.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Text => "string",
            Self::F16 => "fp16",
            Self::F32 => "fp32",
            Self::I32 => "int32",
        }
    }

    /// Returns the bytes of an element.
    pub(super) const fn bytes(self) -> u64 {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 => 2,
            Self::Bool | Self::Text => 1,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Type {
    pub(super) kind: MilKind,
    pub(super) shape: Vec<Dim>,
}

impl Type {
    pub(super) fn new(kind: MilKind, shape: &[Dim]) -> Self {
        Self { kind, shape: shape.to_vec() }
    }

    pub(super) fn message(&self) -> Message {
        let dims = self.shape.iter().map(|dim| match dim.fixed() {
            Some(size) => Message::new().message(1, &Message::new().uint(1, size)),
            None => Message::new().message(2, &Message::new()),
        });
        let tensor = Message::new().uint(1, self.kind.number()).uint(2, self.shape.len() as u64).messages(3, dims);
        Message::new().message(1, &tensor)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct OpResult<'n> {
    pub(super) name: &'n str,
    pub(super) ty: &'n Type,
}

impl<'n> OpResult<'n> {
    pub(super) const fn new(name: &'n str, ty: &'n Type) -> Self {
        Self { name, ty }
    }

    pub(super) const fn named(self, name: &'n str) -> Self {
        Self { name, ..self }
    }

    pub(super) const fn typed(self, ty: &'n Type) -> Self {
        Self { ty, ..self }
    }
}

/// Elements that are part of the program itself.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Literal {
    /// Elements of a floating-point type, little-endian, or booleans.
    Bytes(MilKind, Vec<u8>),
    Ints(Vec<i32>),
    Text(&'static str),
}

impl Literal {
    /// Returns the type and message of a value with this shape.
    pub(super) fn typed(self, shape: &[Dim]) -> (Type, Message) {
        let (kind, tensor) = match self {
            Self::Bytes(kind, bytes) => {
                let field = match kind {
                    MilKind::F16 => 7,
                    MilKind::Bool => 3,
                    _ => 1,
                };
                (kind, Message::new().message(field, &Message::new().bytes(1, &bytes)))
            }
            Self::Ints(values) => {
                let values: Vec<i64> = values.into_iter().map(i64::from).collect();
                (MilKind::I32, Message::new().message(2, &Message::new().ints(1, &values)))
            }
            Self::Text(text) => (MilKind::Text, text_tensor(text)),
        };
        let ty = Type::new(kind, shape);
        let value = immediate(&ty, &tensor);
        (ty, value)
    }
}

fn text_tensor(text: &str) -> Message {
    Message::new().message(4, &Message::new().text(1, text))
}

fn immediate(ty: &Type, tensor: &Message) -> Message {
    Message::new().message(2, &ty.message()).message(3, &Message::new().message(1, tensor))
}

/// Builds the message of a value in the file of weights.
pub(super) fn stored(ty: &Type, file: &str, offset: u64) -> Message {
    Message::new().message(2, &ty.message()).message(5, &Message::new().text(1, file).uint(2, offset))
}

/// Builds the message of a name with its type.
pub(super) fn named(name: &str, ty: &Type) -> Message {
    Message::new().text(1, name).message(2, &ty.message())
}

pub(super) fn entry(key: &str, value: &Message) -> Message {
    Message::new().text(1, key).message(2, value)
}

/// Builds an operation with the result `out`: its operands by parameter, and the value of a constant.
pub(super) fn operation(op: &str, ins: &[(&str, Vec<String>)], out: OpResult<'_>, val: Option<&Message>) -> Message {
    let ins = ins.iter().map(|(parameter, names)| {
        let bindings = names.iter().map(|name| Message::new().text(1, name));
        entry(parameter, &Message::new().messages(1, bindings))
    });
    let itself = immediate(&Type::new(MilKind::Text, &[]), &text_tensor(out.name));
    let made = Message::new().text(1, op).messages(2, ins).message(3, &named(out.name, out.ty));
    let made = val.into_iter().fold(made, |made, val| made.message(5, &entry("val", val)));
    made.message(5, &entry("name", &itself))
}
