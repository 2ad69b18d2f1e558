//! Writes pickles, opcode by opcode: protocol 2 for the items inside shards (what `torch.load(weights_only=True)` reads),
//! protocol 4 for `.metadata` (what CPython itself would write).
//!
//! **Invariant:** classes are made by NEWOBJ + BUILD, never by calling their constructor: the constructors differ between
//! PyTorch versions, the fields do not.

use super::value::Value;
use std::{collections::HashMap, ptr};

/// Which pickle is being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// Text globals, no memo.
    Two,
    /// Stack globals; text and globals are memoized by value.
    Four,
}

pub(super) struct Pickler {
    out: Vec<u8>,
    protocol: Protocol,
    /// Entries of the memo: what can be fetched instead of being written again.
    memoized: u32,
    texts: HashMap<Box<str>, u32>,
    /// Globals that the program itself names, few and met for every chunk: found by the address of the name.
    fixed: Vec<(Fixed, u32)>,
}

/// A module and what is in it; fields of objects are in `FIELD`, objects of `once` in `ONCE`.
type Fixed = (&'static str, &'static str);
const FIELD: &str = "field";
const ONCE: &str = "once";

impl Pickler {
    pub(super) fn new(protocol: Protocol) -> Self {
        Self::with_capacity(protocol, 256)
    }

    /// One that will have about so many bytes.
    pub(super) fn with_capacity(protocol: Protocol, bytes: usize) -> Self {
        let mut out = Vec::with_capacity(bytes);
        out.extend([0x80, if protocol == Protocol::Two { 2 } else { 4 }]);
        Self { out, protocol, memoized: 0, texts: HashMap::new(), fixed: Vec::new() }
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.out.push(b'.');
        self.out
    }

    pub(super) fn none(&mut self) {
        self.out.push(b'N');
    }

    pub(super) fn bool(&mut self, value: bool) {
        self.out.push(if value { 0x88 } else { 0x89 });
    }

    pub(super) fn int(&mut self, value: i64) {
        if let Ok(byte) = u8::try_from(value) {
            self.out.extend([b'K', byte]);
        } else if let Ok(short) = u16::try_from(value) {
            self.out.push(b'M');
            self.out.extend(short.to_le_bytes());
        } else if let Ok(int) = i32::try_from(value) {
            self.out.push(b'J');
            self.out.extend(int.to_le_bytes());
        } else {
            self.out.extend([0x8a, 8]);
            self.out.extend(value.to_le_bytes());
        }
    }

    /// A size or an offset. Those above 2⁶³ cannot be in a file.
    pub(super) fn count(&mut self, value: u64) {
        self.int(i64::try_from(value).unwrap_or(i64::MAX));
    }

    pub(super) fn float(&mut self, value: f64) {
        self.out.push(b'G');
        self.out.extend(value.to_be_bytes());
    }

    pub(super) fn text(&mut self, text: &str) {
        match self.protocol {
            Protocol::Two => self.raw_text(text),
            Protocol::Four => _ = self.memoized_text(text),
        }
    }

    /// The name of a field: text that is part of the program. Protocol 4 only.
    pub(super) fn field(&mut self, name: &'static str) {
        self.recall((FIELD, name), |out| out.memoized_text(name));
    }

    fn memoized_text(&mut self, text: &str) -> u32 {
        if let Some(&index) = self.texts.get(text) {
            self.fetch(index);
            return index;
        }
        self.raw_text(text);
        let index = self.memoize();
        self.texts.insert(text.into(), index);
        index
    }

    fn raw_text(&mut self, text: &str) {
        let short = u8::try_from(text.len()).ok().filter(|_| self.protocol == Protocol::Four);
        if let Some(length) = short {
            self.out.extend([0x8c, length]);
        } else {
            self.out.push(b'X');
            self.out.extend(length32(text.len()));
        }
        self.out.extend(text.as_bytes());
    }

    /// Pushes the class or function `module.name`.
    pub(super) fn global(&mut self, module: &'static str, name: &'static str) {
        if self.protocol == Protocol::Two {
            self.out.push(b'c');
            self.out.extend(format!("{module}\n{name}\n").bytes());
            return;
        }
        self.recall((module, name), |out| {
            out.text(module);
            out.text(name);
            out.out.push(0x93);
            out.memoize()
        });
    }

    /// Pushes an object made by `make` once, and fetched from the memo afterwards. Protocol 4 only.
    pub(super) fn once(&mut self, name: &'static str, make: impl FnOnce(&mut Self)) {
        self.recall((ONCE, name), |out| {
            make(out);
            out.memoize()
        });
    }

    /// Fetches what the program names, which `make` pushes and puts into the memo at first.
    fn recall(&mut self, what: Fixed, make: impl FnOnce(&mut Self) -> u32) {
        match self.fixed(what) {
            Some(index) => self.fetch(index),
            None => {
                let index = make(self);
                self.fixed.push((what, index));
            }
        }
    }

    /// The memo's entry of what the program names. One name may have several addresses.
    fn fixed(&self, name: Fixed) -> Option<u32> {
        let mut entries = self.fixed.iter();
        let by_address = entries.find(|((m, n), _)| ptr::eq(*m, name.0) && ptr::eq(*n, name.1));
        by_address.or_else(|| self.fixed.iter().find(|(known, _)| *known == name)).map(|(_, index)| *index)
    }

    fn fetch(&mut self, index: u32) {
        if let Ok(byte) = u8::try_from(index) {
            self.out.extend([b'h', byte]);
        } else {
            self.out.push(b'j');
            self.out.extend(index.to_le_bytes());
        }
    }

    /// Puts the value on the stack into the memo: MEMOIZE stores under the number of entries so far.
    fn memoize(&mut self) -> u32 {
        self.out.push(0x94);
        self.memoized += 1;
        self.memoized - 1
    }

    /// A tuple of what `items` pushes.
    pub(super) fn tuple(&mut self, items: impl FnOnce(&mut Self)) {
        self.out.push(b'(');
        items(self);
        self.out.push(b't');
    }

    /// Tuple of the topmost value.
    pub(super) fn tuple1(&mut self) {
        self.out.push(0x85);
    }

    pub(super) fn empty_tuple(&mut self) {
        self.out.push(b')');
    }

    /// A list of what `items` pushes.
    pub(super) fn list(&mut self, items: impl FnOnce(&mut Self)) {
        self.out.extend(b"](");
        items(self);
        self.out.push(b'e');
    }

    pub(super) fn empty_list(&mut self) {
        self.out.push(b']');
    }

    /// A dictionary of the keys and values that `items` pushes.
    pub(super) fn dict(&mut self, items: impl FnOnce(&mut Self)) {
        self.out.extend(b"}(");
        items(self);
        self.out.push(b'u');
    }

    pub(super) fn empty_dict(&mut self) {
        self.out.push(b'}');
    }

    /// `class.__new__(class)` of the class on the stack.
    pub(super) fn new_object(&mut self) {
        self.out.extend([b')', 0x81]);
    }

    /// Sets the state on the stack to the object below it.
    pub(super) fn build(&mut self) {
        self.out.push(b'b');
    }

    /// Calls the function below the argument tuple.
    pub(super) fn call(&mut self) {
        self.out.push(b'R');
    }

    /// The persistent object that the value on the stack names.
    pub(super) fn persistent(&mut self) {
        self.out.push(b'Q');
    }

    pub(super) fn counts(&mut self, values: &[u64]) {
        if values.is_empty() {
            return self.empty_tuple();
        }
        self.tuple(|out| values.iter().for_each(|&value| out.count(value)));
    }

    /// A plain value with everything in it.
    pub(super) fn value(&mut self, value: &Value) {
        match value {
            Value::None => self.none(),
            Value::Bool(bool) => self.bool(*bool),
            Value::Int(int) => self.int(*int),
            Value::Float(float) => self.float(*float),
            Value::Str(text) => self.text(text),
            Value::Bytes(bytes) => self.bytes(bytes),
            Value::List(items) => self.list(|out| items.iter().for_each(|item| out.value(item))),
            Value::Tuple(items) if items.is_empty() => self.empty_tuple(),
            Value::Tuple(items) => self.tuple(|out| items.iter().for_each(|item| out.value(item))),
            Value::Dict(items) => self.dict(|out| {
                for (key, value) in items {
                    out.value(key);
                    out.value(value);
                }
            }),
        }
    }

    /// Protocol 2 has no opcode for bytes: CPython writes them as latin-1 text to be encoded.
    fn bytes(&mut self, bytes: &[u8]) {
        self.global("_codecs", "encode");
        self.tuple(|out| {
            out.text(&bytes.iter().map(|&byte| char::from(byte)).collect::<String>());
            out.text("latin1");
        });
        self.call();
    }
}

/// Lengths are 32 bits in the opcodes used here. Longer text does not come here: the shard writer bounds names and values.
fn length32(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes()
}
