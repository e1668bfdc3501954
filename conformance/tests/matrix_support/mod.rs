//! Running one program three times and comparing.
#![allow(dead_code)]

use crate::preload_support::{app, library, root, target, text};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Seconds one script may take.
const LIMIT: &str = "120";
const SIZE: usize = 16 << 20;

/// How a program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Without the library.
    Plain,
    /// With it.
    Preloaded,
    /// With it and with an object that maps a region before main.
    Region,
}

impl Mode {
    /// All of them; the first is what the others are compared with.
    pub const ALL: [Mode; 3] = [Mode::Plain, Mode::Preloaded, Mode::Region];
}

/// One program.
pub struct Case {
    /// Its name in the table.
    pub name: String,
    /// Commands it needs, and files when they begin with a slash.
    needs: Vec<String>,
    prepare: String,
    script: String,
}

impl Case {
    /// Every script of `conformance/apps/matrix`, by name.
    pub fn all() -> Vec<Case> {
        let dir = std::fs::read_dir(root().join("conformance/apps/matrix")).expect("read the programs");
        let mut files: Vec<PathBuf> = dir.map(|e| e.expect("a file").path()).collect();
        files.sort();
        let case = |p: &PathBuf| {
            let name = p.file_name().and_then(|n| n.to_str()?.strip_suffix(".sh")).expect("a script");
            Case::of(name, &std::fs::read_to_string(p).expect("read a script"))
        };
        files.iter().map(case).collect()
    }

    /// The program of a script.
    pub fn of(name: &str, script: &str) -> Case {
        let (prepare, script) = script.split_once("# run\n").unwrap_or_else(|| panic!("{name}: no line says `# run`"));
        let needs = prepare.lines().find_map(|l| l.strip_prefix("# needs ")).unwrap_or("");
        let needs = needs.split_whitespace().map(String::from).collect();
        Case { name: name.into(), needs, prepare: prepare.into(), script: script.into() }
    }

    fn missing(&self) -> Option<&String> {
        let there = |n: &String| {
            n.starts_with('/') && Path::new(n).exists()
                || Command::new("sh")
                    .args(["-c", &format!("command -v {n}")])
                    .output()
                    .is_ok_and(|o| o.status.success())
        };
        self.needs.iter().find(|n| !there(n))
    }
}

/// `name count` for each, in one line.
pub fn listed(hooks: &BTreeMap<String, u64>) -> String {
    let each: Vec<String> = hooks.iter().map(|(h, n)| format!("{h} {n}")).collect();
    if each.is_empty() { "-".into() } else { each.join(", ") }
}

/// A place that every user can reach, with the library, the region object and an exporter.
pub struct Stage {
    dir: PathBuf,
    name: String,
    exporter: Child,
}

impl Drop for Stage {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to do.
        let _ = self.exporter.kill();
        let _ = self.exporter.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::copy(from, to).unwrap_or_else(|e| panic!("copy {} to {}: {e}", from.display(), to.display()));
}

impl Stage {
    /// `None`, with the reason printed, where nothing can be exported.
    pub fn new() -> Option<Stage> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("matrix-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let dir = std::env::temp_dir().join(&name);
        std::fs::create_dir_all(&dir).expect("make a directory");
        copy(&library(), &dir.join("libsmc.so"));
        copy(&app("region_object", &["-shared", "-fPIC"]), &dir.join("region_object.so"));
        let tool = std::env::var_os("SMC_BIN").map_or_else(|| target().join("release/smc"), Into::into);
        let mut c = Command::new(&tool);
        c.args(["serve", "--allow-any", "--name", &name, "--size", &SIZE.to_string()]);
        let Ok(exporter) = c.stdin(Stdio::null()).stdout(Stdio::null()).spawn() else {
            assert!(std::env::var_os("CI").is_none(), "cannot start {}", tool.display());
            eprintln!("skipped: {} is not built", tool.display());
            return None;
        };
        let stage = Stage { dir, name, exporter };
        let start = Instant::now();
        while !stage.command(Mode::Preloaded, "stat", &[&stage.region()]).output().is_ok_and(|o| o.status.success()) {
            assert!(start.elapsed() < Duration::from_secs(20), "the exporter does not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(stage)
    }

    /// Name of the region.
    pub fn region(&self) -> String {
        format!("/smc/local/{}", self.name)
    }

    fn report(&self, of: &str) -> PathBuf {
        self.dir.join(format!("{of}.hooks"))
    }

    fn command(&self, mode: Mode, program: &str, args: &[&str]) -> Command {
        let at = |f| self.dir.join(f).display().to_string();
        let mut c = Command::new("timeout");
        c.args(["-k", "5", LIMIT, program]).args(args).env_remove("LD_PRELOAD").stdin(Stdio::null());
        match mode {
            Mode::Plain => {}
            Mode::Preloaded => drop(c.env("LD_PRELOAD", at("libsmc.so"))),
            Mode::Region => {
                c.env("LD_PRELOAD", format!("{}:{}", at("libsmc.so"), at("region_object.so")));
                c.env("MATRIX_REGION", self.region());
            }
        }
        c
    }

    /// Ends the exporter.
    pub fn end_exporter(&mut self) {
        self.exporter.kill().expect("kill the exporter");
        self.exporter.wait().expect("its end");
    }

    /// Runs the program in every mode; what its hooks did, or how the runs differ.
    pub fn run(&self, case: &Case) -> Result<BTreeMap<String, u64>, String> {
        if let Some(missing) = case.missing() {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "missing with CI=true: {missing}");
            println!("{:18} skipped: {missing} is not installed", case.name);
            return Ok(BTreeMap::new());
        }
        let base = self.dir.join(&case.name).join("base");
        std::fs::create_dir_all(&base).map_err(|e| e.to_string())?;
        let prepared = self.shell(Mode::Plain, &base, &case.prepare, case);
        if !prepared.status.success() {
            return Err(format!("cannot be prepared: {}", text(&prepared.stderr)));
        }
        let report = self.report(&case.name);
        self.open_report(&report);
        let (mut first, mut times) = (None, Vec::new());
        for mode in Mode::ALL {
            let start = Instant::now();
            let out = self.fresh(mode, &base, case);
            times.push(format!("{:5.1} s", start.elapsed().as_secs_f64()));
            match &first {
                None if matches!(out.status.code(), Some(124 | 137)) => return Err("takes too long by itself".into()),
                None => first = Some(out),
                Some(plain) => same(plain, &out).map_err(|why| format!("{mode:?}: {why}"))?,
            }
        }
        let hooks = read_report(&report);
        println!("{:18} {}  {}", case.name, times.join(" "), listed(&hooks));
        Ok(hooks)
    }

    /// Runs the script in a copy of the prepared directory that has the same name every time.
    fn fresh(&self, mode: Mode, base: &Path, case: &Case) -> Output {
        let run = base.with_file_name("run");
        let _ = std::fs::remove_dir_all(&run);
        let copied = Command::new("cp").arg("-a").args([base, &run]).status().expect("run cp");
        assert!(copied.success(), "{}: cannot copy its directory", case.name);
        self.shell(mode, &run, &case.script, case)
    }

    fn shell(&self, mode: Mode, at: &Path, script: &str, case: &Case) -> Output {
        let file = at.with_file_name("script");
        std::fs::write(&file, script).expect("write the script");
        let mut c = self.command(mode, "bash", &[&file.display().to_string()]);
        c.current_dir(at).env("LIBSMC_REPORT", self.report(&case.name)).env("LC_ALL", "C.UTF-8");
        c.output().expect("run bash")
    }

    /// Users that the programs turn into write there too.
    fn open_report(&self, path: &Path) {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(path, "").expect("make the report");
        let open = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(path, open).expect("open the report");
    }

    /// Runs the programs that call the hooked functions on purpose; what their hooks did.
    pub fn exercise(&self) -> BTreeMap<String, u64> {
        let report = self.report("exercisers");
        self.open_report(&report);
        for name in ["posix_path", "every_hook"] {
            let mut c = self.command(
                Mode::Preloaded,
                &app(name, &[]).display().to_string(),
                &[&self.region(), &SIZE.to_string()],
            );
            let out = c.env("LIBSMC_REPORT", &report).output().expect("run an exerciser");
            assert!(out.status.success(), "{name}: {}: {}", out.status, text(&out.stderr));
        }
        let cases = [("signals", "answers"), ("signals", "masks"), ("signals", "threads"), ("signals", "sent")];
        for (program, case) in cases.into_iter().chain([("signal_handlers", "execs")]) {
            let mut c = self.command(Mode::Preloaded, &app(program, &[]).display().to_string(), &[case, "late"]);
            c.env("LIBSMC_FAULT", "sigbus").env("SIGNALS_REGION", self.region());
            let out = c.env("LIBSMC_REPORT", &report).output().expect("run an exerciser");
            assert!(out.status.success(), "{case}: {}: {}", out.status, text(&out.stdout));
        }
        // Here the kernel meets the pages first, and the hooks have to bring them.
        for (name, case) in [
            ("calls", "files"),
            ("calls", "stdio"),
            ("calls", "sockets"),
            ("calls", "waiting"),
            ("calls", "processes"),
            ("edges", "checked"),
            ("memory", "locks"),
            ("memory", "all"),
            ("memory", "refusals"),
            ("daemon", "closefrom"),
        ] {
            let program = app(&format!("situations/{name}"), &[]).display().to_string();
            let mut c = self.command(Mode::Preloaded, &program, &[&self.region(), case]);
            let out =
                c.env("LIBSMC_REPORT", &report).env("LIBSMC_FAULT", "mprotect").output().expect("run an exerciser");
            assert!(out.status.success(), "{name} {case}: {}: {}", out.status, text(&out.stdout));
        }
        read_report(&report)
    }

    /// Names the library hooks: what it exports besides its own API.
    pub fn hooks(&self) -> Vec<String> {
        let out = Command::new("nm")
            .args(["-D", "--defined-only", "--format=posix"])
            .arg(library())
            .output()
            .expect("run nm");
        let names = text(&out.stdout);
        let hooks = names.lines().filter_map(|l| l.split_whitespace().next());
        hooks.filter(|n| !n.starts_with("smc_") && !n.contains("SMC_1.0")).map(String::from).collect()
    }
}

fn read_report(path: &Path) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for line in std::fs::read_to_string(path).expect("read the report").lines() {
        let json: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        for (hook, n) in json["hooks"].as_object().expect("hooks") {
            *all.entry(hook.clone()).or_default() += n.as_u64().expect("a count");
        }
    }
    all
}

fn same(plain: &Output, other: &Output) -> Result<(), String> {
    let differs = |what: &str, a: &str, b: &str| {
        let (x, y) = a.lines().zip(b.lines()).find(|(x, y)| x != y).unwrap_or((a, b));
        Err(format!("{what} differs: {x:?} became {y:?}"))
    };
    if plain.status.code() != other.status.code() {
        let said = text(&other.stderr);
        return differs("the status", &plain.status.to_string(), &format!("{}: {said}", other.status));
    }
    if plain.stdout != other.stdout {
        return differs("stdout", &text(&plain.stdout), &text(&other.stdout));
    }
    if plain.stderr != other.stderr {
        return differs("stderr", &text(&plain.stderr), &text(&other.stderr));
    }
    Ok(())
}
