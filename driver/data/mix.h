// Mixes sources: finds the sample that stands at each position of an epoch.
//
//   absl::StatusOr<Mix> mix = Mix::Make({.sizes = {300, 100}, .weights = {1, 1}});
//   Mix::Located place = mix->Locate(0);     // source 0 or 1, and an index in it
//   mix->counts();                         // {200, 200}: of each source in an epoch
//
// A mix that draws a source at random has the right proportions only on average, and cannot be
// resumed without its generator. Here every epoch has the same count of each source, exact to one
// sample, the sources alternate evenly, and the place of a position is arithmetic. A source that an
// epoch needs only a part of goes on in the next epoch where it was left; one that is too small
// begins again. So no sample of a source comes twice before all others of it have come once.

#ifndef LOCKSTEP_DRIVER_DATA_MIX_H_
#define LOCKSTEP_DRIVER_DATA_MIX_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::data {

struct MixOptions {
  std::vector<int64_t> sizes = {};   // samples of each source
  std::vector<double> weights = {};  // empty: as the sizes, so that an epoch has every sample once
  int64_t size = 0;                  // samples of an epoch; 0: the sum of the sizes
};

class Mix {
 public:
  struct Located {
    int source = 0;
    int64_t index = 0;
    int64_t pass = 0;  // how often all of the source came before; the epoch of a mix within a mix
  };

  // Returns InvalidArgument, which names the source from 1, for a weight that is not positive and
  // finite, for weights that are not as many as sources, and for a source without samples.
  static absl::StatusOr<Mix> Make(const MixOptions& options);

  // Returns what stands at `position`, from 0 to size() - 1, of an epoch. Samples come as they lie
  // in their source; a shuffled order of each pass is the caller's to make of `index` and `pass`.
  Located Locate(int64_t position, int64_t epoch = 0) const;

  int64_t size() const { return size_; }
  const std::vector<int64_t>& counts() const { return counts_; }  // of each source in an epoch

 private:
  std::vector<int64_t> sizes_;
  std::vector<int64_t> counts_;
  int64_t size_ = 0;
};

}  // namespace lockstep::data

#endif  // LOCKSTEP_DRIVER_DATA_MIX_H_
