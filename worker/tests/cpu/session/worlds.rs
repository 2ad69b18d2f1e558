//! The global batch is what is learnt from, in any world and however the shares are cut: gradients and weights agree to
//! rounding, dropout included, also in the last, smaller batch of an epoch.

use crate::session::data::{config, stage};
use enn_broker::tcpstore::{Limits, serve};
use enn_common::{
    config::{
        RunConfig,
        train::{Precision as Wanted, Strategy},
    },
    staged::Split,
};
use enn_worker::{
    block::SubModels,
    comm::{Forming, Gloo, GlooOptions, ProcessGroup, Solo, Store, StoreAddr},
    data::{Position, Sampler, prefetch::Arrays},
    model::ModelSpec,
    session::{
        Recorder, SessionError,
        dataset::Dataset,
        kernels::{KernelTask, Kernels},
        learner::Learner,
        precision::{Demand, Precision},
        round::step::{StepContext, step},
    },
    sharding::configured,
};
use std::{collections::BTreeMap, net::Ipv4Addr, path::Path, time::Duration};
use tch::Device;

const PATIENCE: Duration = Duration::from_secs(60);
/// Gradients of f32 (a rounding is 6e-8) from sums of the same numbers in another order and by other kernels, for which one takes a
/// product depends on its rows; relative to the largest of a tensor.
const GRADIENT_TOLERANCE: f32 = 2e-4;
/// Gradients that are nothing but rounding, relative to the largest of all.
const NOISE: f32 = 1e-6;
/// Weights after the steps: a tenth of what one step may change.
const WEIGHT_TOLERANCE: f32 = 3e-4;

/// The gradient of every step and the weights behind the last, by name.
#[derive(Debug, Default)]
struct Learnt {
    gradients: Vec<BTreeMap<String, Vec<f32>>>,
    weights: BTreeMap<String, Vec<f32>>,
}

/// What one rank learns from the last steps of the first epoch and the first of the second.
fn learn(config: &RunConfig, staged: &Path, group: &dyn ProcessGroup) -> Result<Learnt, SessionError> {
    tch::set_num_threads(1);
    let data = Dataset::for_training(staged).unwrap();
    let index = data.rows(Split::Train);
    let spec = ModelSpec::from_meta(data.staged.0.meta());
    let sampler = Sampler {
        rows: index.len(),
        batch: config.train.batch as u64,
        seed: config.seed,
        rank: u64::from(group.rank()),
        world: u64::from(group.size()),
        accumulation: config.train.accumulation as u64,
        mix: None,
    };
    let mut learner = Learner::build(config, &spec, &SubModels::new(), 100, Device::Cpu).unwrap();
    let rows = sampler.micro_slots();
    learner
        .take_precision(Precision::decide(Wanted::Fp32, Demand::of(&spec, rows), Device::Cpu, group).unwrap())
        .unwrap();
    learner.share_gradients(group).unwrap();
    let recorder = Recorder::default();
    let kernels = Kernels::new(config, &KernelTask::default(), &recorder).unwrap();
    let place = StepContext {
        group,
        reporter: &recorder,
        kernels: &kernels,
        device: Device::Cpu,
        seed: config.seed,
        accumulation: sampler.accumulation,
        first_row: sampler.rank * sampler.batch.div_ceil(sampler.world),
        save: false,
        holds: false,
        copying: None,
        profile: None,
    };
    let mut learnt = Learnt::default();
    let last = sampler.steps_per_epoch() - 1;
    let mut position = Position { epoch: 0, step: last - 2 };
    for at in last - 2..last + 2 {
        let share = sampler.share(position);
        let rows: Vec<u64> = share.ordinals.iter().map(|&ordinal| index.at(ordinal)).collect();
        let batch = data.staged.view().unwrap().gather(&rows, share.real, Device::Cpu).unwrap();
        let done = step(&mut learner, &place, &batch, at, at == last - 2)?;
        assert_eq!(done.taken.double_value(&[]), 1.0);
        let gradients = learner.arrays.params.ids().map(|id| {
            let gradient = learner.arrays.grads.view(id).flatten(0, -1);
            (learner.arrays.params.name(id).to_owned(), Vec::<f32>::try_from(gradient).unwrap())
        });
        learnt.gradients.push(gradients.collect());
        position = sampler.after(position);
    }
    assert_eq!(position, Position { epoch: 1, step: 1 });
    let weights = learner.arrays.weights.views(learner.arrays.weights.slabs()).into_iter();
    learnt.weights =
        weights.map(|(name, view)| (name, Vec::<f32>::try_from(view.detach().flatten(0, -1)).unwrap())).collect();
    Ok(learnt)
}

/// What every rank of a world of several does.
fn ranks<T: Send>(size: u32, work: impl Fn(&dyn ProcessGroup) -> T + Copy + Send) -> Vec<T> {
    let store = serve((Ipv4Addr::LOCALHOST, 0).into(), Limits::default()).unwrap();
    let port = store.addr().port();
    std::thread::scope(|scope| {
        let rank = |rank| {
            scope.spawn(move || {
                let addr = StoreAddr { host: "127.0.0.1".into(), port, prefix: "round-0".into() };
                let store = Store::connect(addr, PATIENCE).unwrap();
                let options = GlooOptions { rank, size, timeout: PATIENCE };
                let group = Box::new(Gloo::form(&store, &options, &Forming::within(PATIENCE)).unwrap());
                let done = work(&*group);
                group.shutdown(PATIENCE).unwrap();
                done
            })
        };
        let ranks: Vec<_> = (0..size).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// What rank 0 of a world learns; all ranks learn the same.
fn world(config: &RunConfig, staged: &Path, size: u32) -> Learnt {
    if size == 1 {
        return learn(config, staged, &Solo).unwrap();
    }
    let mut all = ranks(size, |group| learn(config, staged, group).unwrap());
    assert!(all.windows(2).all(|pair| pair[0].weights == pair[1].weights));
    all.swap_remove(0)
}

#[test]
fn ranks_that_record_other_programs_all_hear_of_both() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let said = ranks(2, |group| {
        let mut config = config(4);
        config.train.accumulation = 1;
        // Changes no parameter, and leaves operations out.
        config.model.dropout = f64::from(group.rank()) * 0.1;
        learn(&config, &staged, group).unwrap_err().to_string()
    });
    assert_eq!(said[0], said[1]);
    assert!(said[0].contains("disagree on the recorded program") && said[0].contains("hint:"), "{said:?}");
    assert!(said[0].contains(" on rank 0") && said[0].contains(" on rank 1"), "{said:?}");
}

/// Elements of moments, average and best weights.
fn beside(learner: &Learner) -> usize {
    let moments = learner.arrays.optimizer.kept().into_iter().flatten();
    let arrays = moments.chain(learner.arrays.ema.iter().flat_map(|ema| ema.kept())).chain(&learner.arrays.best);
    arrays.map(tch::Tensor::numel).sum()
}

#[test]
fn a_rank_that_keeps_a_share_makes_and_wants_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let mut config = config(3);
    config.train.bucket_mib = 0.01;
    let spec = ModelSpec::from_meta(Dataset::for_training(&staged).unwrap().staged.0.meta());
    let bare = || Learner::bare(&config, &spec, &SubModels::new(), 100, Device::Cpu).unwrap();
    let all = bare().arrays.params.numel() as usize;
    for (strategy, arrays) in [(Strategy::Zero1, 4), (Strategy::Fsdp, 5)] {
        let shares = ranks(3, |group| {
            let mut learner = bare();
            assert_eq!(beside(&learner), 0);
            learner.shard(group, configured(strategy).unwrap()).unwrap();
            let own: usize = learner.arrays.weights.own().unwrap().iter().map(tch::Tensor::numel).sum();
            assert_eq!(beside(&learner), 4 * own, "{strategy:?}");
            let (_, shared) = learner.expected().unwrap();
            assert_eq!(shared.tensors.len(), arrays * learner.arrays.params.len(), "{strategy:?}");
            let wanted: usize = shared.boxes.iter().map(|part| part.tensor.numel()).sum();
            assert!(wanted <= arrays * own, "{strategy:?}");
            (own, wanted)
        });
        let wanted: usize = shares.iter().map(|(_, wanted)| wanted).sum();
        // What is left behind equal parts belongs to all, and parameters begin at multiples of 16.
        assert!(
            wanted >= arrays * all && shares.iter().all(|(own, _)| *own < all / 2),
            "{strategy:?}: {shares:?}, {all}"
        );
    }
    let mut whole = bare();
    whole.arrays.allocate().unwrap();
    assert!(beside(&whole) >= 4 * all);
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, value| most.max(value.abs()))
}

fn worst(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).fold(0.0, |most, (a, b)| most.max((a - b).abs()))
}

#[test]
fn every_world_and_accumulation_learns_from_the_same_batches() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let mut config = config(3);
    assert!(config.model.dropout > 0.0 && config.model.drop_path > 0.0);
    // Last batches of 3 (63 = 5 * 12 + 3) and of 7 (63 = 4 * 14 + 7): shares of 3, 0, 0 and of 5, 2, 0 in three ranks.
    for batch in [12, 14] {
        config.train.batch = batch;
        config.train.accumulation = 1;
        let one = world(&config, &staged, 1);
        for (size, accumulation) in [(1, 2), (2, 1), (2, 2), (3, 1), (3, 2)] {
            config.train.accumulation = accumulation;
            let other = world(&config, &staged, size);
            let place = format!("batch {batch}, world {size}, accumulation {accumulation}");
            for (at, (a, b)) in one.gradients.iter().zip(&other.gradients).enumerate() {
                let most = a.values().map(|values| largest(values)).fold(0.0, f32::max);
                assert!(most > 0.0);
                for (name, values) in a {
                    let limit = GRADIENT_TOLERANCE * largest(values) + NOISE * most;
                    let found = worst(values, &b[name]);
                    assert!(found <= limit, "{place}, step {at}, {name}: {found} of {}", largest(values));
                }
            }
            for (name, values) in &one.weights {
                // The keys' bias does not change a softmax: its gradient is rounding noise, which AdamW makes as large as any.
                let found = worst(values, &other.weights[name]);
                assert!(name.ends_with("attention.kv.bias") || found <= WEIGHT_TOLERANCE, "{place}, {name}: {found}");
            }
        }
        config.train.accumulation = 1;
        config.seed += 1;
        let other = world(&config, &staged, 1);
        config.seed -= 1;
        assert!(one.weights != other.weights);
    }
}
