//! Categorical tables: month × weekday × direction → a grid of segments × hours, every combination once.
//!
//! ```text
//! additive   level + month + weekday + direction
//! crossed    additive + direction × (month + weekday) + month × weekend
//! low-rank   level + Σ_r u_r(month, weekday, direction) · v_r(segment, hour), u_r with all crosses of two
//! mixed      the mean of crossed and low-rank
//! ```
//! Every effect is a smooth random surface over the grid of its own size; noise is Student's t, its scale differs by cell.

use super::{
    random::{Random, student_mean_abs},
    table::{Floor, SynthError, Table, configuration},
};
use std::path::PathBuf;

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const DIRECTIONS: [&str; 2] = ["up", "down"];
/// Number of waves in a surface.
const WAVES: usize = 6;
/// Number of factors of the low-rank structure.
const RANK: usize = 3;
/// Standard deviations of main effects, of pairwise interactions, and of the level.
const MAIN: f64 = 4.0;
const CROSS: f64 = 2.5;
const LEVEL: f64 = 12.0;

/// Structure of a row's target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Structure {
    /// Main effects.
    Additive,
    /// Main effects and pairwise interactions.
    Crossed,
    /// A few factors.
    LowRank,
    /// Interactions and factors.
    Mixed,
}

/// A categorical table: month × weekday × direction → segments × hours
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Directory that gets NAME.csv and NAME.toml
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// What a row's target is made of
    #[arg(long, value_enum, default_value_t = Structure::Crossed)]
    structure: Structure,
    /// Seed of everything
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Mean absolute noise, in the target's unit
    #[arg(long, default_value_t = 2.5)]
    noise: f64,
    /// Degrees of freedom of the noise: 2 has very heavy tails, 30 is nearly normal
    #[arg(long, default_value_t = 3)]
    freedom: u32,
    /// Share of target cells that are missing
    #[arg(long, default_value_t = 0.02)]
    missing: f64,
    /// Segments of the grid
    #[arg(long, default_value_t = 39)]
    segments: usize,
    /// Hours of the grid
    #[arg(long, default_value_t = 24)]
    hours: usize,
    /// Times every combination occurs
    #[arg(long, default_value_t = 1)]
    repeats: u64,
}

/// Values over the grid.
type Surface = Vec<f64>;

/// Effects of categories and pairs, as surfaces and as weights of the low-rank structure.
struct Effects {
    level: Surface,
    months: Vec<Surface>,
    weekdays: Vec<Surface>,
    directions: Vec<Surface>,
    direction_months: Vec<Surface>,
    direction_weekdays: Vec<Surface>,
    month_weekends: Vec<Surface>,
    factors: Vec<Surface>,
    /// Weights of months, weekdays, directions and their pairs, for each factor.
    weights: Vec<[Vec<f64>; 6]>,
}

/// Writes the table and its configuration; returns the sentence to print.
pub(super) fn make(args: &Args) -> Result<String, SynthError> {
    check(args)?;
    let name = format!("{:?}", args.structure).to_lowercase();
    let cells = args.segments * args.hours;
    let effects = Effects::new(args);
    let mut random = Random::new(args.seed, 1);
    // Scales by cell between a half and one and a half of the mean.
    let scales: Vec<f64> =
        (0..cells).map(|_| args.noise / student_mean_abs(args.freedom) * (0.5 + random.uniform())).collect();
    let targets: Vec<String> =
        (0..args.segments).flat_map(|s| (0..args.hours).map(move |t| format!("s{s:02}.h{t:02}"))).collect();
    let header = ["month", "weekday", "direction"].map(str::to_owned).into_iter().chain(targets.iter().cloned());
    let mut table = Table::create(&args.out, &format!("{name}.csv"), &header.collect::<Vec<_>>())?;
    let mut floor = Floor::default();
    for _ in 0..args.repeats {
        for (m, month) in MONTHS.iter().enumerate() {
            for (w, weekday) in WEEKDAYS.iter().enumerate() {
                for (d, direction) in DIRECTIONS.iter().enumerate() {
                    let mut row = vec![(*month).to_owned(), (*weekday).to_owned(), (*direction).to_owned()];
                    let truth = effects.truth(args.structure, m, w, d);
                    for (truth, scale) in truth.iter().zip(&scales) {
                        let noise = scale * random.student(args.freedom);
                        if random.uniform() < args.missing {
                            floor.miss();
                            row.push(String::new());
                        } else {
                            floor.add(noise);
                            row.push(format!("{:.3}", truth + noise));
                        }
                    }
                    table.row(&row)?;
                }
            }
        }
    }
    let path = table.finish()?;
    let config = configuration(&args.out, &format!("{name}.toml"), &toml(args, &name, &targets))?;
    Ok(format!("{}: {}\nenn cv {}\n", path.display(), floor.text(), config.display()))
}

fn check(args: &Args) -> Result<(), SynthError> {
    let wrong = |found: String, expected| Err(SynthError::Argument { found, expected });
    if args.freedom < 2 {
        return wrong(format!("--freedom {}", args.freedom), "at least 2: below it the noise has no mean size");
    }
    if !(0.0..1.0).contains(&args.missing) {
        return wrong(format!("--missing {}", args.missing), "a share from 0 up to 1");
    }
    if !(args.noise >= 0.0 && args.noise.is_finite()) {
        return wrong(format!("--noise {}", args.noise), "a size of at least 0");
    }
    if args.segments == 0 || args.hours == 0 {
        return wrong(format!("--segments {} --hours {}", args.segments, args.hours), "at least 1 of each");
    }
    Ok(())
}

fn toml(args: &Args, name: &str, targets: &[String]) -> String {
    let list: Vec<String> = targets.iter().map(|target| format!("\"{target}\"")).collect();
    let category = |column: &str| format!("{{ column = \"{column}\", kind = \"category\" }}");
    format!(
        "# {}, noise {}, {} degrees of freedom, {} missing, seed {}.\nname = \"{name}\"\nseed = 1\n\n[data]\nfiles = \
         [\"{name}.csv\"]\nduplicates = \"keep\"\n\n[data.rows]\nfeatures = [{}, {}, {}]\nout_shape = [{}, {}]\ntargets = [{}]\n\n\
         [data.split]\nkind = \"random\"\nval = 0.1\ntest = 0.1\n",
        name,
        args.noise,
        args.freedom,
        args.missing,
        args.seed,
        category("month"),
        category("weekday"),
        category("direction"),
        args.segments,
        args.hours,
        list.join(", "),
    )
}

impl Effects {
    fn new(args: &Args) -> Self {
        let mut random = Random::new(args.seed, 0);
        let segments = args.segments;
        let hours = args.hours;
        let mut surfaces = |count: usize, size: f64| -> Vec<Surface> {
            (0..count).map(|_| surface(&mut random, segments, hours, size)).collect()
        };
        let mut level = surfaces(1, LEVEL).remove(0);
        level.iter_mut().for_each(|value| *value += 5.0 * LEVEL);
        let months = surfaces(12, MAIN);
        let weekdays = surfaces(7, MAIN);
        let directions = surfaces(2, MAIN);
        let direction_months = surfaces(24, CROSS);
        let direction_weekdays = surfaces(14, CROSS);
        let month_weekends = surfaces(24, CROSS);
        let factors = surfaces(RANK, 1.0);
        let mut weights =
            |count: usize, size: f64| -> Vec<f64> { (0..count).map(|_| size * random.normal()).collect() };
        let weights = (0..RANK)
            .map(|_| {
                [
                    weights(12, MAIN),
                    weights(7, MAIN),
                    weights(2, MAIN),
                    weights(84, CROSS),
                    weights(24, CROSS),
                    weights(14, CROSS),
                ]
            })
            .collect();
        Self {
            level,
            months,
            weekdays,
            directions,
            direction_months,
            direction_weekdays,
            month_weekends,
            factors,
            weights,
        }
    }

    /// Returns the noiseless grid of a combination.
    fn truth(&self, structure: Structure, m: usize, w: usize, d: usize) -> Surface {
        let weekend = usize::from(w >= 5);
        let mut parts: Vec<(f64, &Surface)> = vec![(1.0, &self.level)];
        let share = if structure == Structure::Mixed { 0.5 } else { 1.0 };
        if structure != Structure::LowRank {
            parts.extend([(share, &self.months[m]), (share, &self.weekdays[w]), (share, &self.directions[d])]);
        }
        if matches!(structure, Structure::Crossed | Structure::Mixed) {
            parts.extend([
                (share, &self.direction_months[d * 12 + m]),
                (share, &self.direction_weekdays[d * 7 + w]),
                (share, &self.month_weekends[m * 2 + weekend]),
            ]);
        }
        if matches!(structure, Structure::LowRank | Structure::Mixed) {
            let weight = |[months, weekdays, directions, mw, md, wd]: &[Vec<f64>; 6]| {
                let mains = months[m] + weekdays[w] + directions[d];
                share * (mains + mw[m * 7 + w] + md[m * 2 + d] + wd[w * 2 + d])
            };
            parts.extend(self.weights.iter().map(weight).zip(&self.factors));
        }
        (0..self.level.len()).map(|cell| parts.iter().map(|(weight, surface)| weight * surface[cell]).sum()).collect()
    }
}

/// Returns a smooth random surface of root mean square about `size`: waves along both axes.
fn surface(random: &mut Random, segments: usize, hours: usize, size: f64) -> Surface {
    let amplitude = size * (2.0 / WAVES as f64).sqrt();
    let waves: Vec<[f64; 3]> = (0..WAVES)
        .map(|_| [3.0 * random.uniform(), 3.0 * random.uniform(), std::f64::consts::TAU * random.uniform()])
        .collect();
    let at = |s: usize, t: usize| {
        let s = s as f64 / segments as f64;
        let t = t as f64 / hours as f64;
        let wave = |[a, b, phase]: &[f64; 3]| (std::f64::consts::TAU * (a * s + b * t) + phase).cos();
        amplitude * waves.iter().map(wave).sum::<f64>()
    };
    (0..segments * hours).map(|cell| at(cell / hours, cell % hours)).collect()
}
