//! The fuser walks the task forest: each node joins the tokens of its children, and one Perceiver with shared weights
//! reads every join.

use super::{
    Join, Perceiver, Template,
    join::Child,
    perceiver::Rounds,
    stream::Stream,
    template::{NoSubModel, TemplateSpec},
};
use enn_common::config::forest::{Forest, Part, Reduction, Task};
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    params::ParamBuilder,
};
use tch::Device;

#[derive(Debug, Clone)]
pub struct FuserSpec {
    /// Task forest after validation: it has at least one template.
    pub forest: Forest,
    /// Reduction over the tasks without a parent.
    pub reduction: Reduction,
    /// Sizes and settings that all templates share.
    pub template: TemplateSpec,
    /// Latents and layers of the shared Perceiver.
    pub rounds: Rounds,
}

/// Maps features (B, F') divided by √F' to latents (B, K, D).
///
/// Sub-fusers use the Perceiver of the root, weights included: each gives K tokens and has no parameters.
#[derive(Debug)]
pub struct Fuser {
    roots: Branch,
    perceiver: Perceiver,
}

#[derive(Debug)]
enum Node {
    Template(Box<Template>),
    SubFuser(Branch),
}

/// Children of one node, and their join.
#[derive(Debug)]
struct Branch {
    children: Vec<Node>,
    join: Join,
}

impl Fuser {
    /// Creates the templates, the joins and the Perceiver.
    ///
    /// # Errors
    /// When a task asks for a model that there is not.
    pub fn new(pb: &mut ParamBuilder, name: &str, spec: &FuserSpec) -> Result<Self, NoSubModel> {
        pb.scoped(name, |pb| {
            Ok(Self {
                roots: Branch::new(pb, spec, None, spec.reduction)?,
                perceiver: Perceiver::new(pb, "perceiver", spec.template.width, spec.rounds, spec.template.regularise),
            })
        })
    }

    /// Moves the key biases to `device`; parameters move with their tree.
    pub fn to_device(&mut self, device: Device) {
        self.roots.move_to(device);
    }

    /// Maps features (B, F') divided by √F' to latents (B, K, D). In a stream, temporal templates continue from their
    /// states.
    pub(crate) fn forward(&self, cx: &Cx, x: &Tensor, stream: Option<&mut Stream<'_>>) -> Result<Tensor, OpError> {
        let _scope = cx.scope("fuser");
        self.roots.forward(cx, x, &self.perceiver, stream)
    }
}

impl Branch {
    fn new(
        pb: &mut ParamBuilder,
        spec: &FuserSpec,
        parent: Option<&str>,
        reduction: Reduction,
    ) -> Result<Self, NoSubModel> {
        let tasks: Vec<&Task> = spec.forest.children(parent).collect();
        let node = |task: &&Task| match &task.part {
            Part::Template(config) => {
                Ok(Node::Template(Box::new(Template::new(pb, &task.name, config, &spec.template)?)))
            }
            Part::Fuser { reduction } => Ok(Node::SubFuser(Self::new(pb, spec, Some(&task.name), *reduction)?)),
        };
        let children = tasks.iter().map(node).collect::<Result<_, _>>()?;
        let child = |task: &&Task| Child {
            name: task.name.clone(),
            weight: task.weight,
            tokens: match &task.part {
                Part::Template(config) => config.tokens as i64,
                Part::Fuser { .. } => spec.rounds.latents,
            },
        };
        let join = Join::new(pb, reduction, &tasks.iter().map(child).collect::<Vec<_>>());
        Ok(Self { children, join })
    }

    fn move_to(&mut self, device: Device) {
        self.join.to_device(device);
        for child in &mut self.children {
            if let Node::SubFuser(branch) = child {
                branch.move_to(device);
            }
        }
    }

    fn forward(
        &self,
        cx: &Cx,
        x: &Tensor,
        perceiver: &Perceiver,
        mut stream: Option<&mut Stream<'_>>,
    ) -> Result<Tensor, OpError> {
        let mut tokens = Vec::with_capacity(self.children.len());
        for child in &self.children {
            let stream = stream.as_deref_mut();
            tokens.push(match child {
                Node::Template(template) => template.forward(cx, x, stream)?,
                Node::SubFuser(branch) => branch.forward(cx, x, perceiver, stream)?,
            });
        }
        perceiver.forward(cx, &self.join.sources(cx, tokens)?)
    }
}
