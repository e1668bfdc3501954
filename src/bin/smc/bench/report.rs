//! Figures and how they are printed.

use serde::Serialize;

/// One figure.
#[derive(Serialize, Clone, Debug)]
pub struct Figure {
    /// Stable name, for following it over time.
    pub name: String,
    /// Measured, in `unit`.
    pub value: f64,
    /// Unit of `value`, `baseline`, `p50` and `p99`.
    pub unit: &'static str,
    /// The baseline's value in the same run.
    pub baseline: f64,
    /// `value / baseline`.
    pub ratio: f64,
    /// Link it was taken on.
    pub link: String,
    /// The link's times come from a model.
    pub modelled: bool,
    /// The link's device is made of software: counts mean something, times nothing.
    pub emulated: bool,
    /// Samples behind `value`.
    pub samples: usize,
    /// Median of the samples.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Bound on the ratio, where there is one: `<= 1.5` or `>= 17`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// What the baseline is, and what a reader must know.
    pub note: String,
}

/// What the figures of a link are worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Truth {
    /// This machine's own.
    Measured,
    /// Times come from a declared model.
    Modelled,
    /// The device is made of software.
    Emulated,
}

/// A link's name and what its figures are worth.
pub type On<'a> = (&'a str, Truth);

/// A bound on a ratio.
#[derive(Clone, Copy)]
pub enum Target {
    /// None: reported only.
    None,
    /// At most.
    AtMost(f64),
    /// At most so much more than the baseline, in the figure's unit: a bound on the difference.
    AtMostMore(f64),
    /// At least.
    AtLeast(f64),
}

/// Sorted samples.
pub struct Samples(Vec<f64>);

impl Samples {
    /// Takes samples in any order.
    pub fn new(mut v: Vec<f64>) -> Samples {
        v.sort_by(f64::total_cmp);
        Samples(v)
    }

    /// The q-quantile, 0 without samples.
    pub fn at(&self, q: f64) -> f64 {
        let i = ((self.0.len() as f64 - 1.0).max(0.0) * q).round() as usize;
        self.0.get(i).copied().unwrap_or(0.0)
    }

    /// Median.
    pub fn median(&self) -> f64 {
        self.at(0.5)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Prints figures as they come.
pub struct Report {
    json: bool,
    targets: usize,
    missed: Vec<String>,
    /// All figures so far.
    pub figures: Vec<Figure>,
}

impl Report {
    /// Text for people, or JSON lines.
    pub fn new(json: bool) -> Report {
        if !json {
            println!("{}", machine());
            println!(
                "{:38} {:>12} {:>12} {:>8}  {:<9} {:>10} {:>10}  target",
                "figure", "value", "baseline", "ratio", "link", "p50", "p99"
            );
        }
        Report { json, targets: 0, missed: Vec::new(), figures: Vec::new() }
    }

    /// A line for people, between figures.
    pub fn say(&self, text: &str) {
        if !self.json {
            println!("{text}");
        }
    }

    /// A figure by name.
    pub fn figure(&self, name: &str) -> Option<&Figure> {
        self.figures.iter().find(|f| f.name == name)
    }

    /// A suite begins.
    pub fn begin(&self, suite: &str) {
        if !self.json {
            println!("-- {suite}");
        }
    }

    /// Adds a figure from samples of the product and of the baseline: the ratio is that of the medians.
    #[allow(clippy::too_many_arguments)]
    pub fn add(
        &mut self,
        name: &str,
        unit: &'static str,
        ours: &Samples,
        base: &Samples,
        on: On,
        target: Target,
        note: &str,
    ) {
        self.put(
            name,
            unit,
            ours.median(),
            base.median(),
            (ours.len(), ours.median(), ours.at(0.99)),
            on,
            target,
            note,
        );
    }

    /// Adds a figure from single values.
    #[allow(clippy::too_many_arguments)]
    pub fn put(
        &mut self,
        name: &str,
        unit: &'static str,
        value: f64,
        baseline: f64,
        (samples, p50, p99): (usize, f64, f64),
        (link, truth): On,
        target: Target,
        note: &str,
    ) {
        let ratio = if baseline == 0.0 { 0.0 } else { value / baseline };
        let (text, met) = match target {
            Target::None => (None, true),
            Target::AtMostMore(t) => (Some(format!("<= +{t} {unit}")), value - baseline <= t),
            Target::AtMost(t) => (Some(format!("<= {t}")), ratio <= t),
            Target::AtLeast(t) => (Some(format!(">= {t}")), ratio >= t),
        };
        let f = Figure {
            name: name.into(),
            value,
            unit,
            baseline,
            ratio,
            link: link.into(),
            modelled: truth == Truth::Modelled,
            emulated: truth == Truth::Emulated,
            samples,
            p50,
            p99,
            target: text,
            note: note.into(),
        };
        self.targets += usize::from(f.target.is_some());
        if !met {
            let seen = match target {
                Target::AtMostMore(_) => format!("{:+.3} {unit}", value - baseline),
                _ => format!("ratio {ratio:.3}"),
            };
            self.missed.push(format!("{name}: {seen}, target {}", f.target.as_deref().unwrap_or("")));
        }
        self.print(&f, met);
        self.figures.push(f);
    }

    fn print(&self, f: &Figure, met: bool) {
        if self.json {
            println!("{}", serde_json::to_string(f).unwrap_or_default());
            return;
        }
        let mark = match (f.modelled, f.emulated) {
            (true, _) => "*",
            (_, true) => "~",
            _ => "",
        };
        let link = format!("{}{mark}", f.link);
        let verdict =
            f.target.as_ref().map_or(String::new(), |t| format!("{t} {}", if met { "met" } else { "MISSED" }));
        println!(
            "{:38} {:>12} {:>12} {:>8.3}  {:<9} {:>10} {:>10}  {verdict}",
            f.name,
            human(f.value, f.unit),
            human(f.baseline, f.unit),
            f.ratio,
            link,
            human(f.p50, f.unit),
            human(f.p99, f.unit)
        );
        if !f.note.is_empty() {
            println!("{:6}{}", "", f.note);
        }
    }

    /// Last words.
    pub fn finish(&self) {
        if self.json {
            return;
        }
        if self.figures.iter().any(|f| f.modelled) {
            println!("* modelled: times of that link come from a model, not from hardware");
        }
        if self.figures.iter().any(|f| f.emulated) {
            println!("~ emulated: the device is made of software; counts mean something, times nothing");
        }
        match (self.targets, self.missed.len()) {
            (0, _) => {}
            (t, 0) => println!("all {t} targets met"),
            (t, n) => {
                println!("{n} of {t} targets missed:");
                self.missed.iter().for_each(|m| println!("  {m}"));
            }
        }
    }
}

/// A value with its unit, scaled for reading.
pub fn human(v: f64, unit: &str) -> String {
    match unit {
        "ns" if v >= 1e6 => format!("{:.2} ms", v / 1e6),
        "ns" if v >= 1e3 => format!("{:.2} us", v / 1e3),
        "ns" => format!("{v:.0} ns"),
        "B/s" if v >= 1e9 => format!("{:.2} GB/s", v / 1e9),
        "B/s" => format!("{:.2} MB/s", v / 1e6),
        "1/s" if v >= 1e6 => format!("{:.2} M/s", v / 1e6),
        "1/s" => format!("{:.1} k/s", v / 1e3),
        _ => format!("{v:.0} {unit}"),
    }
}

/// The machine in one line.
pub fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|l| l.strip_prefix("model name"))
        .map_or("unknown processor", |m| m.trim_start_matches([' ', '\t', ':']));
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let vm = if cpu.contains(" hypervisor") { ", virtual machine" } else { "" };
    format!("{model}, {cores} processors{vm}, Linux {}", kernel.trim())
}
