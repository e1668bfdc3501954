//! Compiling C and C++ that includes the header.

use crate::repo;
use std::path::Path;
use std::process::Command;

/// A language standard the header must compile in, alone.
pub struct Standard {
    /// Compiler.
    pub compiler: &'static str,
    /// Its flag.
    pub flag: &'static str,
    /// Extension of the source.
    pub extension: &'static str,
}

/// Every standard promised.
pub const STANDARDS: &[Standard] = &[
    Standard { compiler: "gcc", flag: "-std=c99", extension: "c" },
    Standard { compiler: "gcc", flag: "-std=c11", extension: "c" },
    Standard { compiler: "g++", flag: "-std=c++17", extension: "cpp" },
];

const STRICT: &[&str] = &["-pedantic", "-Wall", "-Wextra", "-Werror"];

/// Compiles a source that includes nothing but `header`, twice. `dir` takes the source.
pub fn alone(header: &Path, standard: &Standard, dir: &Path) -> Result<(), String> {
    let source = dir.join("alone").with_extension(standard.extension);
    let line = format!("#include \"{}\"\n", header.display());
    std::fs::write(&source, format!("{line}{line}int main(void) {{ return 0; }}\n")).map_err(|e| e.to_string())?;
    let mut command = Command::new(standard.compiler);
    repo::run(command.arg(standard.flag).args(STRICT).arg("-fsyntax-only").arg(&source)).map(drop)
}

/// Compiles and runs a C program in `dir`; its standard output.
pub fn run_c(program: &str, dir: &Path) -> Result<String, String> {
    let (source, binary) = (dir.join("program.c"), dir.join("program"));
    std::fs::write(&source, program).map_err(|e| e.to_string())?;
    repo::run(Command::new("gcc").arg("-std=c11").args(STRICT).arg("-o").arg(&binary).arg(&source))?;
    repo::run(&mut Command::new(&binary))
}
