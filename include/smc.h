// smc.h - remote accelerator memory by plain load and store.
//
// Generated from src/capi; do not edit. To change it, change the Rust source and run `smc-tasks header`.


#ifndef SMC_H
#define SMC_H

#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>

// Marks a function of the library.
#ifndef SMC_API
#if defined(__GNUC__)
#define SMC_API __attribute__((visibility("default")))
#else
#define SMC_API
#endif
#endif


#endif  /* SMC_H */
