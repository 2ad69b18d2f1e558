//! Why a pickle cannot be read.

/// Why a pickle was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnpickleError {
    #[error("the pickle ends at byte {at}, in the middle")]
    Short { at: usize },
    #[error("the pickle holds opcode 0x{opcode:02x} at byte {at}, which is not one that checkpoints use")]
    Opcode { opcode: u8, at: usize },
    #[error("the pickle is damaged at byte {at}: opcode 0x{opcode:02x} found values it cannot work on")]
    Operand { opcode: u8, at: usize },
    #[error("the pickle mentions {module}.{name} at byte {at}, which is not on the list of what a checkpoint may hold")]
    Global { module: String, name: String, at: usize },
    #[error("the pickle does not hold {expected}")]
    Unexpected { expected: &'static str },
}
