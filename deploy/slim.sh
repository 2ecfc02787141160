#!/bin/sh
# Takes out of a virtual environment what no service ever loads, and compiles what every service loads at its start.
#   deploy/slim.sh FOLDER [EXTRAS]
set -eu
cd "$1"/lib/python3.*/site-packages

# Tests, and sources of what is compiled.
find . -type d -name tests -prune -exec rm -rf {} +
find . -type f \( -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' -o -name '*.c' -o -name '*.h' -o -name '*.a' \) -delete
# Arrow's parts for remote files and remote procedure calls, and the copies of libraries under names to link with.
rm -rf pyarrow/include pyarrow/*_flight* pyarrow/flight.py pyarrow/*_s3* pyarrow/_gcsfs* pyarrow/_azurefs* pyarrow/_hdfs*
find pyarrow -name 'libarrow_*.so' -delete -o -name 'libarrow_*.so.*.*' -delete
# Extension modules for tests.
rm -rf numpy/_core/_simd.* numpy/_core/_*_tests.* pyarrow/_pyarrow_cpp_tests.*
# What uvicorn only needs to reload itself and for web sockets; an extra may need them, too.
[ -n "${2:-}" ] || rm -rf watchfiles websockets

# Bytecode makes a service start in two thirds of the time. The statistics' libraries are big and load later.
"$1"/bin/python -m compileall -q -x '(pandas|numpy|pyarrow|pygments)/' .
"$1"/bin/python -B -c 'import pandas, pyarrow.compute, pyarrow.parquet, uvicorn, aiohttp'
