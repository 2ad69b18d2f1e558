//! What can be exported in place of operators of libtorch.

/// Exportable operations that compute the same as some operators, or that are nearest to them, by operator name without
/// namespace.
pub const INSTEAD: &[(&str, &str)] = &[
    ("cumsum", "functional::matmul with a triangle of ones"),
    (
        "cumprod",
        "functional::exp of functional::matmul of functional::log with a triangle of ones, for positive numbers",
    ),
    ("prod", "functional::exp of functional::sum of functional::log, for positive numbers"),
    ("var std var_mean std_mean", "functional::mean of functional::square of what functional::mean leaves"),
    ("norm linalg_vector_norm linalg_norm", "functional::sqrt of functional::sum of functional::square"),
    ("amax max", "functional::max_dim"),
    ("amin min", "functional::neg of functional::max_dim of functional::neg"),
    ("maximum minimum", "functional::where_ with functional::at_least of the difference and 0"),
    (
        "sort argsort topk argmax argmin median",
        "functional::max_dim, or weights by functional::softmax: an order has no way out",
    ),
    ("pow", "functional::square, or functional::exp of a multiple of functional::log"),
    ("rsqrt", "functional::reciprocal of functional::sqrt"),
    ("leaky_relu elu selu celu", "functional::relu, functional::silu or functional::gelu"),
    ("hardtanh clamp_min clamp_max relu6", "functional::clamp"),
    ("floor trunc round ceil", "functional::cast to i64 and back, which cuts fractions off"),
    ("eq ge gt le lt ne", "functional::at_least and functional::below of the difference and 0"),
    ("logical_and logical_or logical_not", "functional::and and functional::not"),
    ("isnan isinf isfinite nan_to_num", "functional::is_finite and functional::where_"),
    ("masked_fill masked_select", "functional::where_"),
    ("einsum mm bmm addmm baddbmm mv dot outer", "functional::matmul"),
    ("conv1d conv2d convolution", "functional::linear of parts by functional::narrow that functional::cat joins"),
    ("native_layer_norm group_norm batch_norm instance_norm", "functional::layer_norm"),
    ("_softmax _safe_softmax", "functional::softmax"),
    ("_log_softmax logsumexp", "functional::log_softmax"),
    ("scaled_dot_product_attention", "functional::sdpa"),
    ("gather index take take_along_dim", "functional::index_select, or functional::embedding of a table's rows"),
    ("select slice chunk unbind diff", "functional::narrow"),
    ("view flatten unflatten ravel", "functional::reshape"),
    ("t movedim swapaxes numpy_T", "functional::transpose"),
    ("repeat tile broadcast_to expand_as repeat_interleave", "functional::expand"),
    ("concat concatenate hstack vstack", "functional::cat"),
    ("roll", "functional::cat of two parts by functional::narrow"),
    ("pad constant_pad_nd", "functional::cat with functional::zeros"),
    ("rand randn bernoulli rand_like randn_like", "functional::dropout, which does nothing in an exported model"),
    ("sin cos tan", "a table of them that functional::embedding reads"),
    ("erf", "functional::gelu, in which it is"),
];

/// Operators that a function of the same name replaces.
pub const SAME: &str = "abs add cat clamp detach div dropout embedding exp expand flip gelu index_select layer_norm linear log \
    log_softmax matmul mean mul narrow neg ones permute reciprocal relu reshape rms_norm sigmoid silu softmax \
    softplus split sqrt square squeeze stack sub sum tanh transpose unsqueeze zeros";

/// Returns the nearest operation that can be exported in place of an operator, whose name has its namespace.
pub(super) fn instead(operator: &str) -> Option<String> {
    let name = operator.strip_prefix("aten::")?.split('.').next()?;
    let plain = name.strip_suffix('_').unwrap_or(name);
    if SAME.split_whitespace().any(|name| name == plain) {
        return Some(format!("functional::{plain}"));
    }
    let found = INSTEAD.iter().find(|(names, _)| names.split_whitespace().any(|name| name == plain))?;
    Some(found.1.to_owned())
}
