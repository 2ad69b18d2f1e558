//! Plain values in the syntax of Python.

use enn_common::checkpoint::Value;

/// Formats a plain value in Python syntax, on one line.
pub(super) fn plain(value: &Value) -> String {
    let all = |items: &[Value]| items.iter().map(plain).collect::<Vec<_>>().join(", ");
    match value {
        Value::None => "None".into(),
        Value::Bool(truth) => if *truth { "True" } else { "False" }.into(),
        Value::Int(int) => int.to_string(),
        Value::Float(float) => format!("{float:?}"),
        Value::Str(text) => format!("{text:?}"),
        Value::Bytes(bytes) => format!("{} bytes", bytes.len()),
        Value::List(items) => format!("[{}]", all(items)),
        Value::Tuple(items) => format!("({})", all(items)),
        Value::Dict(items) => {
            let pair = |(key, value): &(Value, Value)| format!("{}: {}", plain(key), plain(value));
            format!("{{{}}}", items.iter().map(pair).collect::<Vec<_>>().join(", "))
        }
    }
}
