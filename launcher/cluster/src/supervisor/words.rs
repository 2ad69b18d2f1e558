//! Sentences of the supervisor: warnings, reasons, answers.

use enn_common::id::Rank;
use std::{path::Path, time::Duration};

pub(super) fn run_ending() -> String {
    "the run is ending".into()
}

pub(super) fn run_ending_or_led_elsewhere() -> String {
    "the run is ending, or another node leads it".into()
}

pub(super) fn run_stopping() -> String {
    "the run is stopping: its workers save and end".into()
}

pub(super) fn just_took_over() -> String {
    "this node has just taken over and waits for the others; ask again".into()
}

/// Adds to the answer that some nodes have not acknowledged the request.
pub(super) fn accepted(says: String, unheard: usize) -> String {
    if unheard == 0 {
        return says;
    }
    format!("{says} ({unheard} other nodes have not said that they know; ask again if this one dies)")
}

pub(super) fn stop_accepted(grace: Duration) -> String {
    format!("the workers finish the step, save and end; they have {:.0} s", grace.as_secs_f64())
}

pub(super) fn which_node() -> String {
    "the run has several nodes: say which one (--node HOST)".into()
}

pub(super) fn only_node(host: &str, found: &str) -> String {
    format!("the run has one node, {host}; found \"{found}\"")
}

pub(super) fn workers_do_not_regroup() -> String {
    "the run's workers do not meet again: it is no training, or one with --policy restart (stop it, and go on with --resume)"
        .into()
}

pub(super) fn workers_out_of_range(found: u32, most: u32, nodes: usize) -> String {
    let place = if nodes == 1 { "this machine" } else { "these machines" };
    format!("found {found} workers, expected 1 to {most} on {place}")
}

pub(super) fn has_workers_already(workers: u32) -> String {
    format!("the run has {workers} workers already")
}

pub(super) fn resized(workers: u32, before: u32, paused: bool) -> String {
    let then = match (workers > before, paused) {
        (_, true) => "when it continues",
        (true, false) => "as soon as the new ones are warm",
        (false, false) => "after the present step",
    };
    format!("the run goes on with {workers} workers instead of {before}, {then}")
}

pub(super) fn paused_already() -> String {
    "the run is paused already".into()
}

pub(super) fn pausing() -> String {
    "the workers leave the round after the present step and stay warm (go on with enn continue)".into()
}

pub(super) fn continuing() -> String {
    "the run goes on".into()
}

pub(super) fn not_paused() -> String {
    "the run is not paused".into()
}

pub(super) fn unknown_node(hosts: &[String], found: &str) -> String {
    format!("the run has the nodes {}; found \"{found}\"", hosts.join(", "))
}

pub(super) fn too_few_nodes_left(left: usize, least: u32) -> String {
    format!("{left} nodes would be left of {least} that the run needs (--nnodes MIN:MAX)")
}

pub(super) fn draining(host: &str, leads: bool, left: usize) -> String {
    let then = if leads { "another node leads, " } else { "" };
    format!("the workers of node {host} leave it after the present step, {then}and {left} nodes go on")
}

pub(super) fn no_link_to_cut(found: &str, others: &[String]) -> String {
    let others = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
    format!("found \"{found}\", expected a node that another one leads: {others}")
}

pub(super) fn link_cut(host: &str, seconds: u32) -> String {
    format!("the link between node {host} and the head is cut for {seconds} s; its workers' own links are not")
}

pub(super) fn drained() -> String {
    "it was drained (enn drain)".into()
}

pub(super) fn leader_drained() -> String {
    "it was drained (enn drain), and another node leads".into()
}

pub(super) fn leader_not_drained(host: &str) -> String {
    format!("node {host} is not drained: no worker of another node has the state of training")
}

pub(super) fn not_drained_after_loss(host: &str, reason: &str) -> String {
    format!("node {host} is not drained, as was asked before the head was lost: {reason}")
}

pub(super) fn leader_was_drained(host: &str) -> String {
    format!("node {host}, which led the run, was drained")
}

pub(super) fn leader_lost() -> String {
    "the node that led the run was lost".into()
}

pub(super) fn node_lost(host: &str, reason: &str) -> String {
    format!("its node {host} was lost: {reason}")
}

pub(super) fn node_stuck() -> String {
    "its agent does nothing, though its connection stands".into()
}

pub(super) fn node_is_back(host: &str) -> String {
    format!("node {host} was out of reach, and is back with its workers")
}

pub(super) fn no_member() -> String {
    "it takes no part in the run any more".into()
}

pub(super) fn nodes_meet_no_more() -> String {
    "the nodes meet no more".into()
}

pub(super) fn node_unfit(host: &str, reason: &str) -> String {
    format!("node {host} cannot take part: {reason}")
}

pub(super) fn run_was_stopped(by: &str) -> String {
    format!("the run was stopped: {by}")
}

pub(super) fn not_attached(rank: Rank, pid: Option<u32>) -> String {
    let pid = pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
    format!("rank {rank}{pid} has not attached, so that no worker can be replaced while the others live")
}

pub(super) fn some_finished(finished: u32) -> String {
    format!("{finished} workers have finished already, so that the others cannot go on without them")
}

pub(super) fn all_restart(obstacle: &str) -> String {
    format!("all workers restart: {obstacle}")
}

pub(super) fn detached(rank: Option<Rank>, pid: Option<u32>, error: &str) -> String {
    let who = rank.map_or_else(|| "a spare".to_owned(), |rank| format!("rank {rank}"));
    let pid = pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
    format!("{who}{pid} is not attached any more: {error}")
}

pub(super) fn rank_ended(rank: Rank) -> String {
    format!("rank {rank} ended")
}

pub(super) fn rank_left(rank: Rank) -> String {
    format!("rank {rank} left it")
}

pub(super) fn rank_left_by_itself(rank: Rank, step: u64) -> String {
    format!("rank {rank} left the round by itself, after {step} steps")
}

pub(super) fn out_of_memory(rank: Rank, split: u32) -> String {
    format!("rank {rank} ran out of memory; micro-batches are cut into {split}")
}

pub(super) fn memory_left(split: u32) -> String {
    format!("no rank was short of memory for long; micro-batches are cut into {split} only")
}

pub(super) fn run_paused() -> String {
    "the run is paused".into()
}

pub(super) fn node_drained(host: &str) -> String {
    format!("node {host} is drained")
}

pub(super) fn goes_on_with(world: u32, seated: usize) -> String {
    format!("the run goes on with {world} workers instead of {seated}")
}

pub(super) fn spare_takes_seat(rank: Rank, pid: u32) -> String {
    format!("a spare takes the seat of rank {rank} (pid {pid}), which the others wait for")
}

pub(super) fn workers_can_join(joining: usize, missing: usize) -> String {
    format!("{joining} of {missing} missing workers can join")
}

pub(super) fn asked_to_leave() -> String {
    "the workers were asked to leave it".into()
}

pub(super) fn saves_before_stop() -> String {
    "the run is to stop: its workers save the state that they keep".into()
}

pub(super) fn not_left_together() -> String {
    "the workers did not leave it together".into()
}

pub(super) fn not_left_in_time(limit: Duration) -> String {
    format!("did not leave the round within {} s of its end", limit.as_secs())
}

pub(super) fn not_ended_in_time(grace: Duration) -> String {
    format!("workers did not end within {:.1} s and were killed", grace.as_secs_f64())
}

pub(super) fn finished_but_alive(rank: Option<Rank>) -> String {
    let name = rank.map_or_else(|| "a spare".to_owned(), |rank| format!("rank {rank}"));
    format!("{name} finished but did not end; it was killed")
}

pub(super) fn no_progress(idle: Duration, what: &str, step: u64) -> String {
    let seconds = idle.as_secs_f64();
    format!("made no progress for {seconds:.0} s, nor did the others, while {what} (step {step})")
}

pub(super) fn newcomer_hangs(idle: Duration, what: &str) -> String {
    format!("made no progress for {:.0} s while {what}, before it was ready", idle.as_secs_f64())
}

pub(super) fn survives_kill(pid: u32, host: &str) -> String {
    let place = if host.is_empty() { String::new() } else { format!(" on {host}") };
    format!(
        "process {pid}{place} does not end after SIGKILL (is it frozen, or does its disk hang?); the run goes on without it and its device"
    )
}

pub(super) fn refused(reason: &str) -> String {
    format!("refused: {reason}")
}

/// Returns a worker's warning; `None` when it warned too often. `count` is how often it did.
pub(super) fn warning(rank: Rank, message: &str, count: u32, limit: u32) -> Option<String> {
    if count < limit {
        Some(format!("rank {rank}: {message}"))
    } else if count == limit {
        Some(format!("rank {rank}: {message} (its further warnings are left out)"))
    } else {
        None
    }
}

pub(super) fn no_spare(error: &str) -> String {
    format!("no spare: {error}")
}

pub(super) fn spares_die(error: &str) -> String {
    format!("spares die before they are warm; no more are started: {}", error.trim())
}

pub(super) fn survivors_save(count: usize) -> String {
    format!("{count} surviving workers save the state of training before the run ends")
}

pub(super) fn given_up(cause: &str, reason: &str) -> String {
    format!("{cause}\n({reason})")
}

pub(super) fn workers_killed() -> String {
    "the workers were killed".into()
}

pub(super) fn no_lock(error: &str) -> String {
    format!("this node cannot lead the run: {error}")
}

pub(super) fn lock_not_taken(limit: Duration) -> String {
    format!("its directory was not to be had within {} s", limit.as_secs())
}

pub(super) fn fenced(error: &str) -> String {
    format!("another node leads the run: {error}")
}

pub(super) fn checkpoints_not_found(limit: Duration) -> String {
    format!("no answer within {} s; does the disk hang?", limit.as_secs())
}

/// What stands when a state is lost.
fn stands(saved: Option<u64>) -> String {
    saved.map_or_else(|| "there is no checkpoint".to_owned(), |saved| format!("that of step {saved} stands"))
}

pub(super) fn last_state_unsaved(trained: u64, saved: Option<u64>, why: Option<String>) -> String {
    let why = why.unwrap_or_else(|| "its shares did not come together".into());
    let stands = stands(saved);
    format!("training ended, but the checkpoint of its last step {trained} could not be written ({stands}): {why}")
}

pub(super) fn stopped_unsaved(reached: u64, saved: Option<u64>, why: Option<String>) -> String {
    let why = why.unwrap_or_else(|| "its workers were killed before they had saved it".into());
    format!("the state after step {reached} is in no checkpoint ({}): {why}", stands(saved))
}

pub(super) fn nobody_left() -> String {
    "no worker is left in the round".into()
}

pub(super) fn nobody_keeps_state() -> String {
    "no worker is left that keeps it".into()
}

pub(super) fn state_not_whole() -> String {
    "the workers that are left do not keep all shares of it".into()
}

pub(super) fn commit_not_answered(run_dir: &Path, limit: Duration) -> String {
    format!("the disk of {} did not take it within {:.0} s; does it hang?", run_dir.display(), limit.as_secs_f64())
}

pub(super) fn not_saved_in_time(rank: Rank, grace: Duration) -> String {
    format!("rank {rank} kept it and did not save it within {:.0} s", grace.as_secs_f64())
}

pub(super) fn because(what: String, cause: Option<&str>) -> String {
    match cause.and_then(|cause| cause.lines().next()) {
        Some(cause) => format!("{what} ({cause})"),
        None => what,
    }
}
