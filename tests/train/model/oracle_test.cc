// SPDX-License-Identifier: MIT
//
// Loss and every gradient against a second model, in numpy (oracle.py), from the same weights and batch. It knows
// nothing of this one but nanoGPT's names and shapes, and derives its backward pass by the chain rule.

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/train/model/harness.h"

namespace train::test {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, const Values& values) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(double)));
}

Values read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  std::vector<char> bytes((std::istreambuf_iterator<char>(in)), {});
  Values values(bytes.size() / sizeof(double));
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(values.data()));
  return values;
}

template <class T>
Values doubles(const std::vector<T>& values) {
  return {values.begin(), values.end()};
}

Values without_padding(const Parameter& p, Values values) {
  values.resize(static_cast<size_t>(Rig::real_elements(p)));
  return values;
}

// |a - b| / |b|
double distance(const Values& a, const Values& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(difference / size);
}

class Oracle : public testing::TestWithParam<Experiment> {
 protected:
  Oracle() {
    std::string pattern = (fs::temp_directory_path() / "lockstep-oracle-XXXXXX").string();
    folder = mkdtemp(pattern.data());
    fs::create_directory(folder / "batch");
    fs::create_directory(folder / "grad");
  }
  ~Oracle() override { fs::remove_all(folder); }

  void tell(Rig& rig) {
    const Config& c = rig.setup().config;
    std::ofstream config(folder / "config.txt"), tensors(folder / "tensors.txt");
    config << "layers " << c.layers << "\nheads " << c.heads << "\nkv_heads " << c.key_value_heads() << "\nrotary "
           << (c.positions == Positions::rotary) << "\ntied " << c.tied << "\nshare_layers " << c.share_layers
           << "\nlength " << c.seq << "\n";
    for (const Parameter* p : rig.model().parameters()) {
      tensors << p->name;
      for (const int64_t n : p->global) tensors << ' ' << n;
      tensors << '\n';
      write(folder / (p->name + ".f64"), without_padding(*p, rig.get(p->value)));
    }
    const HostBatch& batch = rig.batches()[0];
    write(folder / "batch/tokens.f64", doubles(batch.tokens));
    write(folder / "batch/targets.f64", doubles(batch.targets));
    write(folder / "batch/positions.f64", doubles(batch.positions));
    write(folder / "batch/documents.f64", doubles(batch.documents));
  }

  int ask() {
    // The oracle's own products on one thread: a dozen pythons with as many threads as cores each would only wait.
    const std::string command = "OPENBLAS_NUM_THREADS=1 '" ORACLE_PYTHON "' '" ORACLE "' '" + folder.string() + "'";
    return std::system(command.c_str());
  }

  fs::path folder;
};

TEST_P(Oracle, SaysTheSame) {
  Rig rig(GetParam());
  const double loss = rig.step();
  tell(rig);
  ASSERT_EQ(ask(), 0) << "the oracle needs numpy for " ORACLE_PYTHON " (package python3-numpy)";
  const double wanted = read(folder / "loss.f64").at(0);
  EXPECT_NEAR(loss, wanted, 1e-12 * wanted);
  for (const Parameter* p : rig.model().parameters()) {
    const Values gradient = rig.gradient(*p), theirs = read(folder / "grad" / (p->name + ".f64"));
    EXPECT_LT(distance(without_padding(*p, gradient), theirs), 1e-12) << p->name;
    for (size_t i = theirs.size(); i < gradient.size(); ++i) EXPECT_EQ(gradient[i], 0) << p->name << ", padding";
  }
}

// With other weights it says something else: the comparison above can fail.
TEST_P(Oracle, SeesADifferentWeight) {
  Rig rig(GetParam());
  rig.step();
  Parameter* p = rig.model().parameters()[1];
  Values values = rig.get(p->value);
  values[1] += 1e-9;
  rig.put(p->value, values);
  tell(rig);
  ASSERT_EQ(ask(), 0);
  const Parameter* last = rig.model().parameters().back();
  EXPECT_GT(distance(without_padding(*last, rig.gradient(*last)), read(folder / "grad" / (last->name + ".f64"))),
            1e-11);
}

void learned_masks(Experiment& s) { s.masked = true; }
void rotary_grouped_untied(Experiment& s) {
  s.config.positions = Positions::rotary;
  s.config.kv_heads = 2;
  s.config.tied = false;
}
void packed_rotary_padded(Experiment& s) {
  s.config.positions = Positions::rotary;
  s.config.vocab_multiple = 8;
  s.packed = s.masked = true;
  s.sequences = 3;
}
void packed_learned_shared_one_key_head(Experiment& s) {
  s.config.layers = 3;
  s.config.share_layers = true;
  s.config.kv_heads = 1;
  s.packed = true;
}

INSTANTIATE_TEST_SUITE_P(
    All, Oracle,
    testing::Values(small("learned_masks", learned_masks), small("rotary_grouped_untied", rotary_grouped_untied),
                    small("packed_rotary_padded", packed_rotary_padded),
                    small("packed_learned_shared_one_key_head", packed_learned_shared_one_key_head)),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace train::test
