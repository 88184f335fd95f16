declare <4 x float> @llvm.masked.load.v4f32.p0(ptr, i32, <4 x i1>, <4 x float>)

define void @piece(ptr noalias %x, i64 %tokens, ptr noalias %inputs, ptr noalias %outputs, i64 %image, i64 %start, i64 %first, i64 %last, i64 %block) nounwind {
entry:
  %slot5 = alloca i64
  %slot47 = alloca i64
  %v1 = icmp eq i64 %block, 1
  %v2 = select i1 %v1, i64 14, i64 16
  %v3 = urem i64 %v2, 4
  %v4 = sub i64 %v2, %v3
  store i64 0, ptr %slot5
  br label %head6
head6:
  %v9 = load i64, ptr %slot5
  %v10 = icmp slt i64 %v9, 8
  br i1 %v10, label %body7, label %end8
body7:
  %v11 = add i64 %v9, 0
  %v12 = add i64 %start, %v11
  %v13 = sub i64 %tokens, 1
  %v14 = icmp slt i64 %v12, %v13
  %v15 = select i1 %v14, i64 %v12, i64 %v13
  %v16 = mul i64 %v15, 30
  %v17 = mul i64 %block, 16
  %v18 = add i64 %v16, %v17
  %v19 = getelementptr float, ptr %x, i64 %v18
  %v20 = add i64 %v9, 1
  %v21 = add i64 %start, %v20
  %v22 = sub i64 %tokens, 1
  %v23 = icmp slt i64 %v21, %v22
  %v24 = select i1 %v23, i64 %v21, i64 %v22
  %v25 = mul i64 %v24, 30
  %v26 = mul i64 %block, 16
  %v27 = add i64 %v25, %v26
  %v28 = getelementptr float, ptr %x, i64 %v27
  %v29 = add i64 %v9, 2
  %v30 = add i64 %start, %v29
  %v31 = sub i64 %tokens, 1
  %v32 = icmp slt i64 %v30, %v31
  %v33 = select i1 %v32, i64 %v30, i64 %v31
  %v34 = mul i64 %v33, 30
  %v35 = mul i64 %block, 16
  %v36 = add i64 %v34, %v35
  %v37 = getelementptr float, ptr %x, i64 %v36
  %v38 = add i64 %v9, 3
  %v39 = add i64 %start, %v38
  %v40 = sub i64 %tokens, 1
  %v41 = icmp slt i64 %v39, %v40
  %v42 = select i1 %v41, i64 %v39, i64 %v40
  %v43 = mul i64 %v42, 30
  %v44 = mul i64 %block, 16
  %v45 = add i64 %v43, %v44
  %v46 = getelementptr float, ptr %x, i64 %v45
  store i64 0, ptr %slot47
  br label %head48
head48:
  %v51 = load i64, ptr %slot47
  %v52 = icmp slt i64 %v51, %v4
  br i1 %v52, label %body49, label %end50
body49:
  %v53 = mul i64 %v51, 8
  %v54 = add i64 %v53, %v9
  %v55 = getelementptr float, ptr %inputs, i64 %v54
  %v56 = getelementptr float, ptr %v19, i64 %v51
  %v57 = load <4 x float>, ptr %v56, align 4
  %v58 = getelementptr float, ptr %v28, i64 %v51
  %v59 = load <4 x float>, ptr %v58, align 4
  %v60 = getelementptr float, ptr %v37, i64 %v51
  %v61 = load <4 x float>, ptr %v60, align 4
  %v62 = getelementptr float, ptr %v46, i64 %v51
  %v63 = load <4 x float>, ptr %v62, align 4
  %v64 = shufflevector <4 x float> %v57, <4 x float> %v59, <4 x i32> <i32 0, i32 4, i32 1, i32 5>
  %v65 = shufflevector <4 x float> %v61, <4 x float> %v63, <4 x i32> <i32 0, i32 4, i32 1, i32 5>
  %v66 = shufflevector <4 x float> %v57, <4 x float> %v59, <4 x i32> <i32 2, i32 6, i32 3, i32 7>
  %v67 = shufflevector <4 x float> %v61, <4 x float> %v63, <4 x i32> <i32 2, i32 6, i32 3, i32 7>
  %v68 = shufflevector <4 x float> %v64, <4 x float> %v65, <4 x i32> <i32 0, i32 1, i32 4, i32 5>
  %v69 = shufflevector <4 x float> %v64, <4 x float> %v65, <4 x i32> <i32 2, i32 3, i32 6, i32 7>
  %v70 = shufflevector <4 x float> %v66, <4 x float> %v67, <4 x i32> <i32 0, i32 1, i32 4, i32 5>
  %v71 = shufflevector <4 x float> %v66, <4 x float> %v67, <4 x i32> <i32 2, i32 3, i32 6, i32 7>
  %v72 = getelementptr float, ptr %v55, i64 0
  store <4 x float> %v68, ptr %v72, align 4
  %v73 = getelementptr float, ptr %v55, i64 8
  store <4 x float> %v69, ptr %v73, align 4
  %v74 = getelementptr float, ptr %v55, i64 16
  store <4 x float> %v70, ptr %v74, align 4
  %v75 = getelementptr float, ptr %v55, i64 24
  store <4 x float> %v71, ptr %v75, align 4
  %v76 = add nsw i64 %v51, 4
  store i64 %v76, ptr %slot47
  br label %head48
end50:
  %v77 = icmp slt i64 %v4, %v2
  br i1 %v77, label %then78, label %join79
then78:
  %v80 = insertelement <4 x i64> poison, i64 2, i64 0
  %v81 = shufflevector <4 x i64> %v80, <4 x i64> poison, <4 x i32> zeroinitializer
  %v82 = icmp slt <4 x i64> <i64 0, i64 1, i64 2, i64 3>, %v81
  %v83 = mul i64 %v4, 8
  %v84 = add i64 %v83, %v9
  %v85 = getelementptr float, ptr %inputs, i64 %v84
  %v86 = getelementptr float, ptr %v19, i64 %v4
  %v87 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %v86, i32 4, <4 x i1> %v82, <4 x float> <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>)
  %v88 = getelementptr float, ptr %v28, i64 %v4
  %v89 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %v88, i32 4, <4 x i1> %v82, <4 x float> <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>)
  %v90 = getelementptr float, ptr %v37, i64 %v4
  %v91 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %v90, i32 4, <4 x i1> %v82, <4 x float> <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>)
  %v92 = getelementptr float, ptr %v46, i64 %v4
  %v93 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %v92, i32 4, <4 x i1> %v82, <4 x float> <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>)
  %v94 = shufflevector <4 x float> %v87, <4 x float> %v89, <4 x i32> <i32 0, i32 4, i32 1, i32 5>
  %v95 = shufflevector <4 x float> %v91, <4 x float> %v93, <4 x i32> <i32 0, i32 4, i32 1, i32 5>
  %v96 = shufflevector <4 x float> %v87, <4 x float> %v89, <4 x i32> <i32 2, i32 6, i32 3, i32 7>
  %v97 = shufflevector <4 x float> %v91, <4 x float> %v93, <4 x i32> <i32 2, i32 6, i32 3, i32 7>
  %v98 = shufflevector <4 x float> %v94, <4 x float> %v95, <4 x i32> <i32 0, i32 1, i32 4, i32 5>
  %v99 = shufflevector <4 x float> %v94, <4 x float> %v95, <4 x i32> <i32 2, i32 3, i32 6, i32 7>
  %v100 = shufflevector <4 x float> %v96, <4 x float> %v97, <4 x i32> <i32 0, i32 1, i32 4, i32 5>
  %v101 = shufflevector <4 x float> %v96, <4 x float> %v97, <4 x i32> <i32 2, i32 3, i32 6, i32 7>
  %v102 = getelementptr float, ptr %v85, i64 0
  store <4 x float> %v98, ptr %v102, align 4
  %v103 = getelementptr float, ptr %v85, i64 8
  store <4 x float> %v99, ptr %v103, align 4
  br label %join79
join79:
  %v104 = add nsw i64 %v9, 4
  store i64 %v104, ptr %slot5
  br label %head6
end8:
  ret void
}
