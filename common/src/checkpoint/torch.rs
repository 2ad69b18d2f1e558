//! The classes and functions of PyTorch that a checkpoint may mention. Everything else is refused by name.

use super::unpickle::AllowList;

const CLASSES: &[&str] = &[
    "Metadata",
    "TensorStorageMetadata",
    "BytesStorageMetadata",
    "ChunkStorageMetadata",
    "TensorProperties",
    "_MEM_FORMAT_ENCODING",
    "MetadataIndex",
    "StorageMeta",
];

const PATHS: &[&str] = &["PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath", "Path"];

/// What else than the element types and storages of [`Element`](super::element::Element) is allowed of the module itself. Types that we do
/// not read are still listed, so that their neighbours can be.
const TORCH: &[&str] =
    &["Size", "device", "qint8", "qint32", "quint8", "quint4x2", "QInt8Storage", "QInt32Storage", "QUInt8Storage"];

/// Globals that `.metadata` may name.
pub(super) const METADATA_GLOBALS: AllowList = &[
    ("torch.distributed.checkpoint.metadata", CLASSES),
    ("torch.distributed._shard.sharded_tensor.metadata", &["TensorProperties", "MEM_FORMAT_ENCODING"]),
    ("torch.distributed.checkpoint.filesystem", &["_StorageInfo"]),
    ("torch", TORCH),
    ("torch.serialization", &["_get_layout"]),
    ("pathlib", PATHS),
    ("pathlib._local", PATHS),
    ("collections", &["OrderedDict"]),
];

/// Functions that make a tensor.
const REBUILD: &[&str] =
    &["_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter", "_rebuild_qtensor"];
const COLLECTIONS: &[&str] = &["OrderedDict", "defaultdict"];
const BUILTINS: &[&str] = &[
    "set",
    "frozenset",
    "complex",
    "bytes",
    "bytearray",
    "object",
    "list",
    "dict",
    "tuple",
    "int",
    "float",
    "str",
    "bool",
    "slice",
    "range",
];
const MULTIARRAY: &[&str] = &["_reconstruct", "scalar"];

/// Globals that a file of its own may name and that are understood: items, arrays of numpy, objects made the old way.
pub(super) const FILE_GLOBALS: AllowList = &[
    ("torch._utils", REBUILD),
    ("torch._tensor", &["_rebuild_from_type_v2"]),
    ("torch", TORCH),
    ("torch.storage", &["UntypedStorage", "TypedStorage", "_load_from_bytes"]),
    ("torch.serialization", &["_get_layout"]),
    ("torch.torch_version", &["TorchVersion"]),
    ("collections", COLLECTIONS),
    ("_codecs", &["encode"]),
    ("__builtin__", BUILTINS),
    ("builtins", BUILTINS),
    ("copyreg", &["_reconstructor", "__newobj__"]),
    ("copy_reg", &["_reconstructor", "__newobj__"]),
    ("numpy", &["dtype", "ndarray"]),
    ("numpy.core.multiarray", MULTIARRAY),
    ("numpy._core.multiarray", MULTIARRAY),
    ("numpy.core.numeric", &["_frombuffer"]),
    ("numpy._core.numeric", &["_frombuffer"]),
];

/// Globals that an item may name.
pub(super) const ITEM_GLOBALS: AllowList = &[
    ("torch._utils", REBUILD),
    ("torch._tensor", &["_rebuild_from_type_v2"]),
    ("torch", TORCH),
    ("torch.storage", &["UntypedStorage", "TypedStorage"]),
    ("torch.serialization", &["_get_layout"]),
    ("torch.torch_version", &["TorchVersion"]),
    ("collections", COLLECTIONS),
    ("_codecs", &["encode"]),
    ("__builtin__", &["set", "complex", "bytes", "bytearray"]),
    ("builtins", &["set", "complex", "bytes", "bytearray"]),
];
