//! The installed tree: what a C programmer gets.

use crate::repo::{self, run};
use crate::runner::{Case, Cost, Ctx, Need, Verdict, need};
use std::path::Path;
use std::process::Command;

/// The suite.
pub const CASES: &[Case] = &[
    Case::new("install_pkgconfig_program_runs", program_runs).needs(NEEDS).cost(Cost::Quick),
    Case::new("install_destdir_is_not_in_the_files", destdir).needs(NEEDS).cost(Cost::Quick),
];

const NEEDS: &[Need] = &[Need::Library, Need::Tool, Need::Program("gcc"), Need::Program("pkg-config")];

fn install(prefix: &Path, destdir: &Path) -> Result<String, String> {
    let library = need::library()?;
    let mut command = Command::new(repo::root().join("conformance/install"));
    command.arg("--from").arg(library.parent().unwrap_or(Path::new("."))).env("PREFIX", prefix).env("DESTDIR", destdir);
    run(command.env_remove("LIBDIR"))
}

fn pkg_config(pc_dir: &Path) -> Result<Vec<String>, String> {
    let mut command = Command::new("pkg-config");
    let said = run(command
        .args(["--cflags", "--libs", "smc"])
        .env("PKG_CONFIG_PATH", pc_dir)
        .env_remove("PKG_CONFIG_SYSROOT_DIR"))?;
    Ok(said.split_whitespace().map(str::to_string).collect())
}

/// A C program builds with what pkg-config says and nothing else, and runs with the installed library.
fn program_runs(ctx: &mut Ctx) -> Verdict {
    build_and_run(ctx.scratch()).into()
}

fn build_and_run(scratch: &Path) -> Result<(), String> {
    let prefix = scratch.join("tree");
    install(&prefix, Path::new(""))?;
    let lib = prefix.join("lib");
    let program = scratch.join("installed");
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(repo::root().join("conformance/apps/installed.c"));
    // The program calls nothing yet that would make the linker keep the library.
    run(gcc.arg("-Wl,--no-as-needed").args(pkg_config(&lib.join("pkgconfig"))?))?;
    let said = run(Command::new(&program).env("LD_LIBRARY_PATH", &lib))?;
    if !said.contains(&*lib.to_string_lossy()) {
        return Err(format!("ran with another library than the installed one: {said}"));
    }
    run(Command::new(prefix.join("bin/smc")).arg("--version")).map(drop)
}

fn destdir(ctx: &mut Ctx) -> Verdict {
    staged(ctx.scratch()).into()
}

/// A package build: files go below DESTDIR, and none of them names it.
fn staged(scratch: &Path) -> Result<(), String> {
    let stage = scratch.join("stage");
    install(Path::new("/opt/smc"), &stage)?;
    let tree = stage.join("opt/smc");
    for file in ["lib/libsmc.so.1", "lib/libsmc.so", "include/smc.h", "bin/smc", "lib/pkgconfig/smc.pc"] {
        if !tree.join(file).is_file() {
            return Err(format!("{file} was not installed"));
        }
    }
    let link = std::fs::read_link(tree.join("lib/libsmc.so")).map_err(|e| e.to_string())?;
    if link != Path::new("libsmc.so.1") {
        return Err(format!("libsmc.so points to {}", link.display()));
    }
    let flags = pkg_config(&tree.join("lib/pkgconfig"))?;
    for want in ["-I/opt/smc/include", "-L/opt/smc/lib", "-lsmc"] {
        if !flags.iter().any(|f| f == want) {
            return Err(format!("pkg-config says {flags:?}, without {want}"));
        }
    }
    Ok(())
}
