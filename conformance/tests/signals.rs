//! Signals that a back end uses: the program notices nothing. Each program runs without the library, and with it and a
//! region whose pages it touches, under every back end; what it prints and how it ends must be the same.

mod matrix_support;
mod preload_support;

use matrix_support::{Case, Stage};
use preload_support::{app, limited, output, preloaded, root, text};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

/// Back ends, and what the region's name says. The last uses SIGTRAP as well.
const BACKENDS: [(&str, &str); 5] =
    [("sigbus", ""), ("mprotect", ""), ("sync", ""), ("thread", ""), ("sync", "?through=exact")];

/// Those that work here.
fn backends(stage: &Stage) -> Vec<(&'static str, &'static str)> {
    let works = |b: &(&str, &str)| {
        let mut c = preloaded("stat", &[&stage.region()]);
        let out = output({
            c.env("LIBSMC_FAULT", b.0);
            c
        });
        if !out.status.success() {
            eprintln!("skipped: back end {} does not work here: {}", b.0, text(&out.stderr));
        }
        out.status.success()
    };
    BACKENDS.into_iter().filter(works).collect()
}

fn run(mut c: Command, env: &[(&str, &str)]) -> Output {
    c.envs(env.iter().copied());
    output(c)
}

fn compare(program: &str, cases: &[&[&str]]) {
    let Some(stage) = Stage::new() else { return };
    let program = app(program, &[]);
    let program = program.to_str().expect("UTF-8");
    for case in cases {
        for when in ["early", "late"] {
            let args: Vec<&str> = [&case[..1], &[when], &case[1..]].concat();
            let plain = run(limited(program, &args), &[]);
            assert_ne!(plain.status.code(), Some(124), "{args:?} takes too long by itself");
            assert!(!matches!(plain.status.code(), Some(98 | 99)), "{args:?} fails by itself: {}", text(&plain.stdout));
            for (backend, options) in backends(&stage) {
                let region = format!("{}{options}", stage.region());
                let ours = run(preloaded(program, &args), &[("LIBSMC_FAULT", backend), ("SIGNALS_REGION", &region)]);
                let name = format!("{args:?} under {backend}{options}");
                let (a, b) = (text(&plain.stdout), text(&ours.stdout));
                let first = a.lines().zip(b.lines()).enumerate().find(|(_, (a, b))| a != b);
                assert_eq!(first, None, "{name}: {}", text(&ours.stderr));
                assert_eq!((plain.status, a.lines().count()), (ours.status, b.lines().count()), "{name}: {b}");
            }
        }
    }
}

#[test]
fn dispositions_and_masks_are_answered_as_they_were_set() {
    compare("signals", &[&["answers"], &["masks"], &["threads"]]);
}

#[test]
fn handlers_run_as_their_flags_say() {
    compare("signal_handlers", &[&["flags"], &["unwinds"], &["overflow"]]);
    compare("signals", &[&["restart"]]);
}

#[test]
fn signals_that_are_sent_wait_and_arrive() {
    compare("signals", &[&["sent"]]);
}

#[test]
fn handlers_may_jump_and_may_touch_views_with_everything_blocked() {
    compare("signal_handlers", &[&["before"], &["jumps"], &["full_mask"]]);
}

#[test]
fn children_get_and_change_their_own() {
    compare("signal_handlers", &[&["children"], &["execs"], &["replaced"]]);
}

#[test]
fn the_program_dies_by_the_very_signal() {
    let signals = ["7", "11", "5", "16"];
    // 16 is the number that the library borrows: its dispositions are the program's, and what blocks it is not.
    let each: Vec<[&str; 3]> = signals.iter().flat_map(|s| ["0", "1", "2", "3"].map(|how| ["die", s, how])).collect();
    let each: Vec<_> = each.into_iter().filter(|e| e[1..] != ["16", "2"]).collect();
    compare("signal_handlers", &each.iter().map(|c| &c[..]).collect::<Vec<_>>());
}

/// What the program sees of a page that can no longer be had, with a handler, and when it ignores the signal.
#[test]
fn a_page_that_is_gone_is_the_programs_own_sigbus() {
    let program = app("signal_handlers", &[]);
    for when in ["early", "late"] {
        for n in 0..BACKENDS.len() {
            let Some(mut stage) = Stage::new() else { return };
            let Some((backend, options)) = backends(&stage).get(n).copied() else { continue };
            let join = if options.is_empty() { '?' } else { '&' };
            let mut c = preloaded(program.to_str().expect("UTF-8"), &["gone", when]);
            c.env("LIBSMC_FAULT", backend).env("LIBSMC_LOG", "off");
            c.env("SIGNALS_REGION", format!("{}{options}{join}onerror=sigbus&wait=200ms", stage.region()));
            let mut p = c.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start it");
            let mut lines = BufReader::new(p.stdout.take().expect("stdout")).lines().map(|l| l.expect("a line"));
            assert_eq!(lines.by_ref().nth(1).as_deref(), Some("ready"), "{when} {backend}{options}");
            stage.end_exporter();
            p.stdin.take().expect("stdin").write_all(b"go\n").expect("let it go on");
            let said: Vec<String> = lines.collect();
            let handled = ["handler 7, address 1", "  blocked: 7"];
            let wanted = [&handled[..], &handled, &["after:", "set 7: was another 4000004"]].concat();
            let status = p.wait().expect("its end");
            assert_eq!(
                (said, status.signal()),
                (wanted.iter().map(|l| l.to_string()).collect(), Some(7)),
                "{when} {backend}{options}"
            );
        }
    }
}

/// Everything at once, with so little memory for the region that its pages come and go.
#[test]
fn nothing_is_lost_in_a_storm() {
    let Some(stage) = Stage::new() else { return };
    let program = app("signal_storm", &[]);
    for (backend, options) in backends(&stage) {
        let join = if options.is_empty() { '?' } else { '&' };
        let region = format!("{}{options}{join}resident=64k", stage.region());
        let env = [("LIBSMC_FAULT", backend), ("SIGNALS_REGION", &region)];
        for case in ["storm", "forks"] {
            let out = run(preloaded(program.to_str().expect("UTF-8"), &[case, "early"]), &env);
            let said = text(&out.stdout);
            assert!(
                out.status.success() && said.ends_with("end\n"),
                "{case} {backend}{options}: {} {said}",
                out.status
            );
        }
    }
}

/// Programs that live by these signals, with a region beside them.
#[test]
fn runtimes_keep_their_signals() {
    let Some(stage) = Stage::new() else { return };
    let dir = root().join("conformance/apps/matrix");
    for program in ["python3.faulthandler", "jvm.null", "go"] {
        let script = std::fs::read_to_string(dir.join(format!("{program}.sh"))).expect("read a script");
        for (backend, _) in backends(&stage).into_iter().filter(|b| b.1.is_empty()) {
            let script = script.replace("# run\n", &format!("# run\nexport LIBSMC_FAULT={backend}\n"));
            let case = Case::of(&format!("{program}-{backend}"), &script);
            stage.run(&case).unwrap_or_else(|why| panic!("{program} under {backend}: {why}"));
        }
    }
}
