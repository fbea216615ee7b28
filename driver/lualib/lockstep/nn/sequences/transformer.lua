--- Transformers of PyTorch (arXiv 1706.03762): layers, stacks of layers, and both stacks together. Parameters, their
--- names and first values, options and results are PyTorch's.
---
---     local layer = nn.TransformerEncoderLayer(64, 4, { batch_first = true, norm_first = true })
---     local encoder = nn.TransformerEncoder(layer, 6, { norm = nn.LayerNorm(64) })
---     local y = encoder(x, { src_key_padding_mask = is_padding })       -- x and y [batch, time, 64]
---
--- A model for text is better one of lockstep.models: it packs sequences without padding, and its kernels are fused.

local copy = require("lockstep.nn.copy").copy
local init = require "lockstep.nn.initializers"
local make = require "lockstep.nn.parameter"
local nn = require "lockstep.nn"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

---@class nn.transformer
local M = {}

---@class nn.TransformerLayerOptions
---@field dim_feedforward integer? default 2048
---@field dropout number? default 0.1
---@field activation ("relu"|"gelu"|fun(x: torch.Tensor): torch.Tensor)? default "relu"
---@field layer_norm_eps number? default 1e-5
---@field batch_first boolean? default false; true: inputs and outputs are [batch, time, d_model]
---@field norm_first boolean? default false; true: norms stand before attention and the MLP, not behind the sums
---@field bias boolean? default true

---@class nn.EncoderCallOptions
---@field src_mask torch.Tensor? of a layer; see attn_mask of nn.MultiheadAttention
---@field mask torch.Tensor? of a stack: src_mask of its layers
---@field src_key_padding_mask torch.Tensor? [batch, time]; true: padding
---@field is_causal boolean? default false; true: a token sees itself and those before it

---@class nn.DecoderCallOptions
---@field tgt_mask torch.Tensor?
---@field memory_mask torch.Tensor?
---@field tgt_key_padding_mask torch.Tensor?
---@field memory_key_padding_mask torch.Tensor?
---@field tgt_is_causal boolean? default false; true: a token of tgt sees itself and those before it
---@field memory_is_causal boolean? default false

local LAYER = { dim_feedforward = 2048, dropout = 0.1, activation = options.optional, layer_norm_eps = 1e-5,
  batch_first = false, norm_first = false, bias = true }

local function activation_of(class, activation)
  if plain.is_callable(activation) then return activation end
  activation = activation or "relu"
  plain.check(activation == "relu" or activation == "gelu",
    'nn.%s: activation must be "relu", "gelu" or a function, not %s', class, tostring(activation))
  return activation == "relu" and torch.relu or torch.gelu
end

--- Gives a layer its attentions, by their names, its MLP and its norms.
local function build(self, class, d_model, nhead, opts, attentions)
  local o = options.read("nn." .. class, opts, LAYER)
  local function norm() return nn.LayerNorm(d_model, { eps = o.layer_norm_eps, bias = o.bias }) end
  for _, name in ipairs(attentions) do
    self[name] = nn.MultiheadAttention(d_model, nhead,
      { dropout = o.dropout, bias = o.bias, batch_first = o.batch_first })
  end
  self.linear1 = nn.Linear(d_model, make.positive(class, "dim_feedforward", o.dim_feedforward), { bias = o.bias })
  self.dropout = nn.Dropout(o.dropout)
  self.linear2 = nn.Linear(o.dim_feedforward, d_model, { bias = o.bias })
  for i = 1, #attentions + 1 do
    self["norm" .. i], self["dropout" .. i] = norm(), nn.Dropout(o.dropout)
  end
  self.norm_first, self.activation = o.norm_first, activation_of(class, o.activation)
end

--- Returns x after a part of a layer: the sum of x and part(x), normalized before or behind.
local function add_part(self, x, i, part)
  local norm, dropout = self["norm" .. i], self["dropout" .. i]
  if self.norm_first then return x + dropout(part(norm(x))) end
  return norm(x + dropout(part(x)))
end

local function attend(attention, query, memory, attn_mask, key_padding_mask, is_causal)
  return (attention(query, memory, memory, { attn_mask = attn_mask, key_padding_mask = key_padding_mask,
    is_causal = is_causal, need_weights = false }))
end

local function mlp(self)
  return function(x) return self.linear2(self.dropout(self.activation(self.linear1(x)))) end
end

--- Attention of a sequence over itself, then an MLP. Called with src, [time, batch, d_model] or [time, d_model], and
--- options. Parameters: self_attn (an nn.MultiheadAttention), linear1, linear2, norm1, norm2.
---
---     local layer = nn.TransformerEncoderLayer(64, 4, { dropout = 0, activation = "gelu" })
---     local y = layer(torch.randn { 10, 2, 64 }, { is_causal = true })
---@class nn.TransformerEncoderLayer: nn.Module
local TransformerEncoderLayer = nn.Module:subclass("TransformerEncoderLayer")
---@type fun(d_model: integer, nhead: integer, opts: nn.TransformerLayerOptions?): nn.TransformerEncoderLayer
M.TransformerEncoderLayer = TransformerEncoderLayer

function TransformerEncoderLayer:init(d_model, nhead, opts)
  build(self, "TransformerEncoderLayer", d_model, nhead, opts, { "self_attn" })
end

---@param src torch.Tensor
---@param opts nn.EncoderCallOptions?
---@return torch.Tensor
function TransformerEncoderLayer:forward(src, opts)
  local o = options.read("nn.TransformerEncoderLayer", opts, { src_mask = options.optional,
    src_key_padding_mask = options.optional, is_causal = false })
  local x = add_part(self, src, 1, function(x)
    return attend(self.self_attn, x, x, o.src_mask, o.src_key_padding_mask, o.is_causal)
  end)
  return add_part(self, x, 2, mlp(self))
end

--- Attention of a sequence over itself, then over `memory`, then an MLP. Called with tgt, memory and options.
--- Parameters: self_attn, multihead_attn, linear1, linear2, norm1, norm2, norm3.
---
---     local layer = nn.TransformerDecoderLayer(64, 4)
---     local y = layer(torch.randn { 10, 2, 64 }, torch.randn { 7, 2, 64 }, { tgt_is_causal = true })
---@class nn.TransformerDecoderLayer: nn.Module
local TransformerDecoderLayer = nn.Module:subclass("TransformerDecoderLayer")
---@type fun(d_model: integer, nhead: integer, opts: nn.TransformerLayerOptions?): nn.TransformerDecoderLayer
M.TransformerDecoderLayer = TransformerDecoderLayer

function TransformerDecoderLayer:init(d_model, nhead, opts)
  build(self, "TransformerDecoderLayer", d_model, nhead, opts, { "self_attn", "multihead_attn" })
end

local DECODER_CALL = { tgt_mask = options.optional, memory_mask = options.optional,
  tgt_key_padding_mask = options.optional, memory_key_padding_mask = options.optional, tgt_is_causal = false,
  memory_is_causal = false }

---@param tgt torch.Tensor
---@param memory torch.Tensor
---@param opts nn.DecoderCallOptions?
---@return torch.Tensor
function TransformerDecoderLayer:forward(tgt, memory, opts)
  local o = options.read("nn.TransformerDecoderLayer", opts, DECODER_CALL)
  local x = add_part(self, tgt, 1, function(x)
    return attend(self.self_attn, x, x, o.tgt_mask, o.tgt_key_padding_mask, o.tgt_is_causal)
  end)
  x = add_part(self, x, 2, function(inner)
    return attend(self.multihead_attn, inner, memory, o.memory_mask, o.memory_key_padding_mask, o.memory_is_causal)
  end)
  return add_part(self, x, 3, mlp(self))
end

-- Stacks --------------------------------------------------------------------------------------------------

--- Makes the class of a stack. Its layers are copies of one, and so begin with the same values, as in PyTorch.
local function stack(class, argument)
  local Stack = nn.Module:subclass(class)

  function Stack:init(layer, num_layers, opts)
    local o = options.read("nn." .. class, opts, { norm = options.optional })
    plain.check(nn.is_module(layer), "nn.%s: %s must be a module, not a %s", class, argument, type(layer))
    plain.check(o.norm == nil or nn.is_module(o.norm), "nn.%s: norm must be a module, not a %s", class, type(o.norm))
    local layers = {}
    for i = 1, make.positive(class, "num_layers", num_layers) do layers[i] = copy(layer) end
    self.layers = nn.ModuleList(layers)
    self.norm = o.norm
  end

  --- Calls the layers one after the other, each with the results of the one before and `...`.
  function Stack:run(x, ...)
    for _, layer in ipairs(self.layers) do x = layer(x, ...) end
    return self.norm and self.norm(x) or x
  end

  return Stack
end

--- A stack of copies of an encoder layer, and a norm behind them. Called with src and options.
---@class nn.TransformerEncoder: nn.Module
local TransformerEncoder = stack("TransformerEncoder", "encoder_layer")
---@type fun(encoder_layer: nn.Module, num_layers: integer, opts: {norm: nn.Module?}?): nn.TransformerEncoder
M.TransformerEncoder = TransformerEncoder

---@param src torch.Tensor
---@param opts nn.EncoderCallOptions?
---@return torch.Tensor
function TransformerEncoder:forward(src, opts)
  local o = options.read("nn.TransformerEncoder", opts, { mask = options.optional,
    src_key_padding_mask = options.optional, is_causal = false })
  return self:run(src, { src_mask = o.mask, src_key_padding_mask = o.src_key_padding_mask, is_causal = o.is_causal })
end

--- A stack of copies of a decoder layer, and a norm behind them. Called with tgt, memory and options.
---@class nn.TransformerDecoder: nn.Module
local TransformerDecoder = stack("TransformerDecoder", "decoder_layer")
---@type fun(decoder_layer: nn.Module, num_layers: integer, opts: {norm: nn.Module?}?): nn.TransformerDecoder
M.TransformerDecoder = TransformerDecoder

---@param tgt torch.Tensor
---@param memory torch.Tensor
---@param opts nn.DecoderCallOptions?
---@return torch.Tensor
function TransformerDecoder:forward(tgt, memory, opts)
  return self:run(tgt, memory, options.read("nn.TransformerDecoder", opts, DECODER_CALL))
end

--- An encoder and a decoder, each with a norm at its end. Options: those of its layers, and num_encoder_layers and
--- num_decoder_layers, 6 by default. Called with src, tgt and options: those of nn.TransformerDecoder, and src_mask,
--- src_key_padding_mask and src_is_causal. Weights begin as xavier_uniform_ draws them.
---
---     local model = nn.Transformer(64, 4, { num_encoder_layers = 2, num_decoder_layers = 2, batch_first = true })
---     local y = model(src, tgt, { tgt_is_causal = true })
---@class nn.Transformer: nn.Module
local Transformer = nn.Module:subclass("Transformer")
---@type fun(d_model: integer, nhead: integer, opts: table?): nn.Transformer
M.Transformer = Transformer

function Transformer:init(d_model, nhead, opts)
  local o = options.read("nn.Transformer", opts, plain.copy(LAYER, { num_encoder_layers = 6, num_decoder_layers = 6 }))
  local of_layer = {}
  for name in pairs(LAYER) do of_layer[name] = o[name] end
  local function norm() return nn.LayerNorm(d_model, { eps = o.layer_norm_eps, bias = o.bias }) end
  self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(d_model, nhead, of_layer), o.num_encoder_layers,
    { norm = norm() })
  self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(d_model, nhead, of_layer), o.num_decoder_layers,
    { norm = norm() })
  for _, p in ipairs(self:parameters()) do
    if p:dim() > 1 then init.xavier_uniform_(p) end
  end
end

local CALL = plain.copy(DECODER_CALL, { src_mask = options.optional, src_key_padding_mask = options.optional,
  src_is_causal = false })

---@param src torch.Tensor
---@param tgt torch.Tensor
---@param opts table?
---@return torch.Tensor
function Transformer:forward(src, tgt, opts)
  local o = options.read("nn.Transformer", opts, CALL)
  local of_decoder = {}
  for name in pairs(DECODER_CALL) do of_decoder[name] = o[name] end
  local memory = self.encoder(src, { mask = o.src_mask, src_key_padding_mask = o.src_key_padding_mask,
    is_causal = o.src_is_causal })
  return self.decoder(tgt, memory, of_decoder)
end

return M
