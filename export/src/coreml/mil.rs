//! MIL, the language of Core ML's programs, as protocol buffers: element types, types, values, operations (MIL.proto of coremltools 9).

use crate::proto::Message;
use enn_common::graph::{DType, Dim};

/// Element types, by their number in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Bool,
    Text,
    F16,
    F32,
    I32,
}

impl Kind {
    /// What stands for an element type of a graph: integers have 32 bits there, and there is no bf16.
    pub(super) const fn of(dtype: DType) -> Self {
        match dtype {
            DType::F32 | DType::Bf16 => Self::F32,
            DType::F16 => Self::F16,
            DType::I64 => Self::I32,
            DType::Bool => Self::Bool,
        }
    }

    /// In a type.
    pub(super) const fn number(self) -> u64 {
        match self {
            Self::Bool => 1,
            Self::Text => 2,
            Self::F16 => 10,
            Self::F32 => 11,
            Self::I32 => 23,
        }
    }

    /// By its number in a type.
    pub(super) fn numbered(number: u64) -> Option<Self> {
        [Self::Bool, Self::Text, Self::F16, Self::F32, Self::I32].into_iter().find(|kind| kind.number() == number)
    }

    /// In the file of weights, which holds floats.
    pub(super) const fn stored(self) -> Option<u32> {
        match self {
            Self::F16 => Some(1),
            Self::F32 => Some(2),
            Self::Bool | Self::Text | Self::I32 => None,
        }
    }

    /// As an element type of a model's inputs and outputs, which have no truth values.
    pub(super) const fn of_port(self) -> u64 {
        match self {
            Self::F16 => 65_552,
            Self::F32 => 65_568,
            Self::Bool | Self::Text | Self::I32 => 131_104,
        }
    }

    /// As a cast names it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Text => "string",
            Self::F16 => "fp16",
            Self::F32 => "fp32",
            Self::I32 => "int32",
        }
    }

    /// Bytes of an element.
    pub(super) const fn bytes(self) -> u64 {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 => 2,
            Self::Bool | Self::Text => 1,
        }
    }
}

/// The type of a value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Type {
    pub(super) kind: Kind,
    pub(super) shape: Vec<Dim>,
}

impl Type {
    pub(super) fn new(kind: Kind, shape: &[Dim]) -> Self {
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

/// Elements that stand in the program itself.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Literal {
    Floats(Vec<f32>),
    /// f16, little-endian.
    Halves(Vec<u8>),
    Ints(Vec<i32>),
    Bools(Vec<bool>),
    Text(&'static str),
}

impl Literal {
    fn kind(&self) -> Kind {
        match self {
            Self::Floats(_) => Kind::F32,
            Self::Halves(_) => Kind::F16,
            Self::Ints(_) => Kind::I32,
            Self::Bools(_) => Kind::Bool,
            Self::Text(_) => Kind::Text,
        }
    }

    /// A value of this shape.
    pub(super) fn typed(self, shape: &[Dim]) -> (Type, Message) {
        let ty = Type::new(self.kind(), shape);
        let tensor = match &self {
            Self::Floats(values) => {
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                Message::new().message(1, &Message::new().bytes(1, &bytes))
            }
            Self::Halves(bytes) => Message::new().message(7, &Message::new().bytes(1, bytes)),
            Self::Ints(values) => {
                let values: Vec<i64> = values.iter().map(|value| i64::from(*value)).collect();
                Message::new().message(2, &Message::new().ints(1, &values))
            }
            Self::Bools(values) => {
                let bytes: Vec<u8> = values.iter().map(|value| u8::from(*value)).collect();
                Message::new().message(3, &Message::new().bytes(1, &bytes))
            }
            Self::Text(text) => text_tensor(text),
        };
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

/// A value in the file of weights.
pub(super) fn stored(ty: &Type, file: &str, offset: u64) -> Message {
    Message::new().message(2, &ty.message()).message(5, &Message::new().text(1, file).uint(2, offset))
}

/// A name with its type.
pub(super) fn named(name: &str, ty: &Type) -> Message {
    Message::new().text(1, name).message(2, &ty.message())
}

/// An entry of a map.
pub(super) fn entry(key: &str, value: &Message) -> Message {
    Message::new().text(1, key).message(2, value)
}

/// An operation that makes `name`: what it takes by parameter, and, of a constant, its value.
pub(super) fn operation(
    op: &str,
    ins: &[(&str, Vec<String>)],
    (name, ty): (&str, &Type),
    val: Option<&Message>,
) -> Message {
    let ins = ins.iter().map(|(parameter, names)| {
        let bindings = names.iter().map(|name| Message::new().text(1, name));
        entry(parameter, &Message::new().messages(1, bindings))
    });
    let itself = immediate(&Type::new(Kind::Text, &[]), &text_tensor(name));
    let made = Message::new().text(1, op).messages(2, ins).message(3, &named(name, ty));
    let made = val.into_iter().fold(made, |made, val| made.message(5, &entry("val", val)));
    made.message(5, &entry("name", &itself))
}
