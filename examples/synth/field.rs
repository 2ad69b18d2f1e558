//! Spatio-temporal tables: hourly values at stations on a line, a long table of station × time of any length.
//!
//! ```text
//! value_e(t) = level_e + season_e · cos(year) + day_e · cos(hours) + x_e(t)
//! x(t + 1)   = A x(t) + ε,  A_ee = φ (1 − κ), A_e,e−1 = φ κ: weather that decays and moves along the line;  ε normal
//! ```
//! A forecaster that knows the model and sees the last hour of a day errs in the next day's hour h by the h-step noise alone, a normal
//! of covariance Σ_{i<h} Aⁱ Aⁱᵀ σ²: its mean absolute error is exact.

use super::{
    random::Random,
    table::{SynthError, Table, configuration},
};
use std::{f64::consts::TAU, path::PathBuf};

/// Hours of a day and of a year.
const DAY: u64 = 24;
const YEAR: f64 = 365.2425 * 24.0;
/// Start of the table, 2001-01-01T00:00:00Z, a Monday, in Unix seconds.
const BEGIN_S: i64 = 978_307_200;
/// Discarded steps before the first, so that the weather is stationary.
const WARM_UP: u64 = 1_000;
/// Limit on stations: the exact error needs powers of a matrix of their number.
const STATIONS_MAX: usize = 512;

/// A long table of stations × hours, to forecast the next day
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Directory that gets field.csv and field.toml
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Seed of everything
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Stations
    #[arg(long, default_value_t = 8)]
    stations: usize,
    /// Days
    #[arg(long, default_value_t = 730)]
    days: u64,
    /// Standard deviation of an hour's surprise, in the target's unit
    #[arg(long, default_value_t = 1.0)]
    noise: f64,
    /// Share of the weather that lasts from one hour to the next, φ
    #[arg(long, default_value_t = 0.97)]
    memory: f64,
    /// Share of it that comes from the station before, κ
    #[arg(long, default_value_t = 0.3)]
    drift: f64,
    /// Share of hours that are missing
    #[arg(long, default_value_t = 0.01)]
    missing: f64,
}

/// Constants of a station: level, amplitude and phase of its year and its day.
struct Station {
    level: f64,
    season: (f64, f64),
    day: (f64, f64),
}

/// Writes the table and its configuration; returns the sentence to print.
pub(super) fn make(args: &Args) -> Result<String, SynthError> {
    check(args)?;
    let mut random = Random::new(args.seed, 0);
    let stations: Vec<Station> = (0..args.stations)
        .map(|_| Station {
            level: 50.0 + 5.0 * random.normal(),
            season: (12.0 + 2.0 * random.normal(), 0.5 * random.normal()),
            day: (5.0 + random.normal(), 0.3 * random.normal()),
        })
        .collect();
    let header = ["station", "time", "value"].map(str::to_owned);
    let mut table = Table::create(&args.out, "field.csv", &header)?;
    let mut random = Random::new(args.seed, 1);
    let mut weather = vec![0.0; args.stations];
    (0..WARM_UP).for_each(|_| advance(&mut weather, args, &mut random));
    for hour in 0..args.days * DAY {
        advance(&mut weather, args, &mut random);
        for (number, (station, weather)) in stations.iter().zip(&weather).enumerate() {
            if random.uniform() < args.missing {
                continue;
            }
            let time = BEGIN_S + hour.cast_signed() * 3600;
            let value = station.at(hour) + weather;
            table.row(&[format!("e{number:03}"), time.to_string(), format!("{value:.3}")])?;
        }
    }
    let path = table.finish()?;
    let config = configuration(&args.out, "field.toml", &toml(args))?;
    let floor = floor(args);
    Ok(format!(
        "{}: the best possible forecast of the next day from all of the day before has MAE {floor:.4}\nenn train {}\n",
        path.display(),
        config.display()
    ))
}

fn check(args: &Args) -> Result<(), SynthError> {
    let wrong = |found: String, expected| Err(SynthError::Argument { found, expected });
    let shares = [("--missing", args.missing), ("--memory", args.memory), ("--drift", args.drift)];
    if let Some((flag, value)) = shares.into_iter().find(|(_, value)| !(0.0..1.0).contains(value)) {
        return wrong(format!("{flag} {value}"), "a share from 0 up to 1");
    }
    if !(1..=STATIONS_MAX).contains(&args.stations) {
        return wrong(format!("--stations {}", args.stations), "1 to 512");
    }
    if !(args.noise >= 0.0 && args.noise.is_finite()) {
        return wrong(format!("--noise {}", args.noise), "a size of at least 0");
    }
    if args.days < 3 {
        return wrong(format!("--days {}", args.days), "at least 3: a day is forecast from the one before");
    }
    Ok(())
}

fn toml(args: &Args) -> String {
    format!(
        "# {} stations, {} days, noise {}, memory {}, drift {}, seed {}.\nname = \"field\"\nseed = 1\n\n[data]\nfiles = \
         [\"field.csv\"]\n\n[data.windows]\nentity = \"station\"\ntime = \"time\"\nstep_s = 3600\nsteps = 24\nhistory = 1\n\
         inputs = [\"value\"]\ntarget = \"value\"\ncalendar = [\"day_of_year\"]\n\n[data.split]\nkind = \"chronological\"\n\
         val = 0.15\ntest = 0.15\n",
        args.stations, args.days, args.noise, args.memory, args.drift, args.seed,
    )
}

impl Station {
    fn at(&self, hour: u64) -> f64 {
        let year = hour as f64 / YEAR;
        let day = (hour % DAY) as f64 / DAY as f64;
        let wave = |(size, phase): (f64, f64), turn: f64| size * (TAU * turn + phase).cos();
        self.level + wave(self.season, year) + wave(self.day, day)
    }
}

/// Advances the weather by one hour. The first station is its own predecessor.
fn advance(weather: &mut [f64], args: &Args, random: &mut Random) {
    moved(weather, args);
    weather.iter_mut().for_each(|value| *value += args.noise * random.normal());
}

/// Computes A x.
fn moved(weather: &mut [f64], args: &Args) {
    for station in (0..weather.len()).rev() {
        let before = weather[station.saturating_sub(1)];
        weather[station] = args.memory * ((1.0 - args.drift) * weather[station] + args.drift * before);
    }
}

/// Returns the mean absolute error of the forecaster that knows the model, over stations and the hours of the next day.
fn floor(args: &Args) -> f64 {
    let count = args.stations;
    // Column j of Aⁱ is the effect after i hours of a noise at station j.
    let mut columns: Vec<Vec<f64>> =
        (0..count).map(|j| (0..count).map(|e| f64::from(u8::from(e == j))).collect()).collect();
    let mut variance = vec![0.0; count];
    let mut sum = 0.0;
    for _ in 0..DAY {
        for column in &columns {
            variance.iter_mut().zip(column).for_each(|(variance, share)| *variance += (share * args.noise).powi(2));
        }
        sum += variance.iter().map(|variance| variance.sqrt()).sum::<f64>();
        columns.iter_mut().for_each(|column| moved(column, args));
    }
    // Mean of |x| of a normal is σ √(2/π).
    sum / (count as u64 * DAY) as f64 * (2.0 / std::f64::consts::PI).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_error_is_what_knowing_all_leaves() {
        let args = Args {
            out: PathBuf::new(),
            seed: 3,
            stations: 4,
            days: 10,
            noise: 1.5,
            memory: 0.9,
            drift: 0.4,
            missing: 0.0,
        };
        let mut random = Random::new(7, 0);
        let mut weather = vec![0.0; 4];
        let mut sum = 0.0;
        let mut n = 0;
        for _ in 0..4_000 {
            let mut forecast = weather.clone();
            for _ in 0..DAY {
                moved(&mut forecast, &args);
                advance(&mut weather, &args, &mut random);
                sum += forecast.iter().zip(&weather).map(|(a, b)| (a - b).abs()).sum::<f64>();
                n += 4;
            }
        }
        let found = sum / f64::from(n);
        let exact = floor(&args);
        assert!((found / exact - 1.0).abs() < 0.02, "{found} {exact}");
    }
}
