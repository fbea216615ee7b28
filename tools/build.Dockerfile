# Builds the wheel and the archive where Debian 12 is not the system:
#
#   docker build -f tools/build.Dockerfile --output dist .
#
# The build takes about half an hour on 2 cores and 12 GB of disk.
FROM debian:12 AS build
WORKDIR /lockstep
# Packages, libtorch and the like change seldom, and sources often.
COPY MODULE.bazel WORKSPACE ./
COPY third_party third_party
RUN third_party/setup
COPY . .
RUN mkdir /dist && ./package /dist/lockstep.whl && ./package /dist

FROM scratch
COPY --from=build /dist /
