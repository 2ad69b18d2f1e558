//! Plain values beside the tensors: what a pickle of numbers, text and containers means.

/// A plain Python value. Dictionaries keep their order.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    None,
    Bool(bool),
    /// An integer that fits 64 bits.
    Int(i64),
    Float(f64),
    Str(String),
    Bytes(Vec<u8>),
    List(Vec<Self>),
    Tuple(Vec<Self>),
    Dict(Vec<(Self, Self)>),
}

impl Value {
    pub fn dict<K: Into<String>>(items: impl IntoIterator<Item = (K, Self)>) -> Self {
        Self::Dict(items.into_iter().map(|(key, value)| (Self::Str(key.into()), value)).collect())
    }

    /// The entry of a dictionary under a text key.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let Self::Dict(items) = self else { return None };
        items.iter().find(|(k, _)| matches!(k, Self::Str(text) if text == key)).map(|(_, value)| value)
    }

    pub fn as_str(&self) -> Option<&str> {
        if let Self::Str(text) = self { Some(text) } else { None }
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Str(value.to_owned())
    }
}
